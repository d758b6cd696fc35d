-- Write records of one group if all expected ones are unchanged (compare-and-set).
--
-- KEYS    one hash a table
-- ARGV    channel, hint ('' for none), number of expected records, number of writes;
--         for each expected record: number of its key, field, stamp ('0': must be absent);
--         for each write: number of its key, field, 'w' or 'd' (delete), data ('' where deleted)
-- Return  the stamp of the write, or false where an expected record differed and nothing was written
--
-- The stamp is the store's time in microseconds, or one more than the newest of the tables if that is later. A table whose
-- last record is deleted goes with its stamp: the keys of forgotten jobs would add up.
local channel, hint, expected, writes = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
local at = 5
for _ = 1, expected do
  local value = redis.call('HGET', KEYS[tonumber(ARGV[at])], ARGV[at + 1])
  local stamp = value and string.match(value, '^%d+') or '0'
  if stamp ~= ARGV[at + 2] then
    return false
  end
  at = at + 3
end
local time = redis.call('TIME')
local newest = time[1] * 1000000 + time[2]
for _, key in ipairs(KEYS) do
  local stamp = tonumber(redis.call('HGET', key, '#') or '0') or 0
  if stamp >= newest then
    newest = stamp + 1
  end
end
local stamp = string.format('%.0f', newest)
for _ = 1, writes do
  local key = KEYS[tonumber(ARGV[at])]
  if ARGV[at + 2] == 'd' then
    redis.call('HDEL', key, ARGV[at + 1])
  else
    redis.call('HSET', key, ARGV[at + 1], stamp .. ' ' .. ARGV[at + 3])
  end
  redis.call('HSET', key, '#', stamp)
  at = at + 4
end
for _, key in ipairs(KEYS) do
  if redis.call('HLEN', key) == 1 and redis.call('HEXISTS', key, '#') == 1 then
    redis.call('DEL', key)
  end
end
if hint ~= '' then
  redis.call('PUBLISH', channel, hint)
end
return stamp
