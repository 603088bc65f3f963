-- Deletes a field that still has a value: a fingerprint that leads to a session, a note. KEYS: the hash. ARGV: the field, the value
if redis.call('HGET', KEYS[1], ARGV[1]) == ARGV[2] then
    return redis.call('HDEL', KEYS[1], ARGV[1])
end
return 0
