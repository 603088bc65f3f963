-- Takes sessions off the list: those last used before a time, then, while more than some bytes are used, the least
-- recently used. The most recently used one stays.
-- KEYS: used, sizes, total. ARGV: time, bytes, how many at most
-- Returns member, time, member, time, …
local reply = {}
local total = tonumber(redis.call('GET', KEYS[3]) or 0)
for _ = 1, tonumber(ARGV[3]) do
    local oldest = redis.call('ZRANGE', KEYS[1], 0, 1, 'WITHSCORES')
    if #oldest < 4 or not (tonumber(oldest[2]) < tonumber(ARGV[1]) or total > tonumber(ARGV[2])) then
        break
    end
    redis.call('ZREM', KEYS[1], oldest[1])
    local size = tonumber(redis.call('HGET', KEYS[2], oldest[1]) or 0)
    redis.call('HDEL', KEYS[2], oldest[1])
    total = total - size
    redis.call('DECRBY', KEYS[3], string.format('%.0f', size))
    reply[#reply + 1] = oldest[1]
    reply[#reply + 1] = oldest[2]
end
return reply
