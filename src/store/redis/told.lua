-- The live events since a place. KEYS: events, how many there were, whether somebody listens.
-- ARGV: the place, or '' for where to begin; how long the reader counts as listening, ms
-- Returns {place, how many are not there any more, event, event, …}.
-- A full server takes no writes.
redis.pcall('SET', KEYS[3], '1', 'PX', ARGV[2])
local place = tonumber(redis.call('GET', KEYS[2]) or 0)
local new = math.max(place - (tonumber(ARGV[1]) or place), 0)
local reply = {place, new}
if new > 0 then
    for _, event in ipairs(redis.call('LRANGE', KEYS[1], -new, -1)) do
        reply[#reply + 1] = event
        reply[2] = reply[2] - 1
    end
end
return reply
