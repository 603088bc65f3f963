-- Adds live events, of which the newest are kept. KEYS: events, how many there were. ARGV: how many are kept, how long in ms,
-- then the events
redis.call('RPUSH', KEYS[1], unpack(ARGV, 3))
redis.call('LTRIM', KEYS[1], -tonumber(ARGV[1]), -1)
redis.call('PEXPIRE', KEYS[1], ARGV[2])
return redis.call('INCRBY', KEYS[2], #ARGV - 2)
