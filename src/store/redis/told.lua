-- The live events since a place. KEYS: events, how many there were. ARGV: the place, or '' for where to begin
-- Returns {place, how many are not there any more, event, event, …}.
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
