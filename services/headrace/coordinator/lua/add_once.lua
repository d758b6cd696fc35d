-- Add records that are not there yet, up to a bound; count what finds no room.
--
-- KEYS    the table's hash
-- ARGV    bound on records; then field, data, field, data, ...
-- Return  number of records that were new, kept or not
--
-- The field 'beyond' counts what was not kept; '#' holds the table's newest stamp.
local key, bound = KEYS[1], tonumber(ARGV[1])
local time = redis.call('TIME')
local newest = time[1] * 1000000 + time[2]
local last = tonumber(redis.call('HGET', key, '#') or '0') or 0
if last >= newest then
  newest = last + 1
end
local stamp = string.format('%.0f', newest)
local kept = redis.call('HLEN', key) - redis.call('HEXISTS', key, '#') - redis.call('HEXISTS', key, 'beyond')
local new, beyond = 0, 0
for i = 2, #ARGV, 2 do
  if redis.call('HEXISTS', key, ARGV[i]) == 0 then
    new = new + 1
    if kept < bound then
      redis.call('HSET', key, ARGV[i], stamp .. ' ' .. ARGV[i + 1])
      kept = kept + 1
    else
      beyond = beyond + 1
    end
  end
end
if beyond > 0 then
  local before = redis.call('HGET', key, 'beyond')
  local count = before and tonumber(string.match(before, ' (%d+)$')) or 0
  redis.call('HSET', key, 'beyond', stamp .. ' ' .. string.format('%.0f', count + beyond))
end
if new > 0 then
  redis.call('HSET', key, '#', stamp)
end
return new
