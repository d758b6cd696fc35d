-- Read tables of one group at one moment.
--
-- KEYS    one hash a table
-- ARGV    for each key: the table stamp that the caller has cached, or -1 if it wants fields;
--         then the number of fields, then the fields
-- Return  {now_us, for each key: {stamp, values}} with values = false where the cached stamp is still the newest,
--         {field, value, ...} of the whole hash, or {value or false, ...} in the order of the fields asked for
--
-- A value is "<stamp> <data>"; the field "#" holds the table's newest stamp.
local time = redis.call('TIME')
local answer = {string.format('%.0f', time[1] * 1000000 + time[2])}
local at = 1
for i, key in ipairs(KEYS) do
  local cached, count = ARGV[at], tonumber(ARGV[at + 1])
  local stamp = redis.call('HGET', key, '#') or '0'
  local values = false
  if count > 0 then
    values = redis.call('HMGET', key, unpack(ARGV, at + 2, at + 1 + count))
  elseif cached == '-1' then
    values = {}
  elseif cached ~= stamp then
    values = redis.call('HGETALL', key)
  end
  answer[i + 1] = {stamp, values}
  at = at + 2 + count
end
return answer
