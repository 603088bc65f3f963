-- Takes a deleted session off the list. KEYS: used, sizes, total, name. ARGV: member, tenant
redis.call('ZREM', KEYS[1], ARGV[1])
local size = redis.call('HGET', KEYS[2], ARGV[1])
if size then
    redis.call('HDEL', KEYS[2], ARGV[1])
    redis.call('DECRBY', KEYS[3], size)
end
redis.call('SREM', KEYS[4], ARGV[2])
return 1
