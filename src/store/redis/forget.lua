-- Deletes a fingerprint that still leads to a session. KEYS: the hash. ARGV: the field, the session
if redis.call('HGET', KEYS[1], ARGV[1]) == ARGV[2] then
    return redis.call('HDEL', KEYS[1], ARGV[1])
end
return 0
