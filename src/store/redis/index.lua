-- Notes in the list of sessions that one was used.
-- KEYS: used, sizes, total, name. ARGV: member, time, bytes, tenant, lifetime in ms
redis.call('ZADD', KEYS[1], 'GT', ARGV[2], ARGV[1])
redis.call('HINCRBY', KEYS[2], ARGV[1], ARGV[3])
redis.call('INCRBY', KEYS[3], ARGV[3])
redis.call('SADD', KEYS[4], ARGV[4])
redis.call('PEXPIRE', KEYS[4], ARGV[5])
return 1
