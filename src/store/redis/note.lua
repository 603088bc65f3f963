-- Sets a note of a session, unless the session was deleted since the writer knew it.
-- KEYS: notes, gone. ARGV: age of what the writer knows in us, key, text, lifetime in ms
local time = redis.call('TIME')
local deleted = redis.call('GET', KEYS[2])
if deleted and time[1] * 1000000 + time[2] - tonumber(ARGV[1]) <= tonumber(deleted) then
    return 0
end
redis.call('HSET', KEYS[1], ARGV[2], ARGV[3])
redis.call('PEXPIRE', KEYS[1], ARGV[4])
return 1
