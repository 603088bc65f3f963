-- Deletes a key that still has a value. KEYS: it. ARGV: the value
if redis.call('GET', KEYS[1]) == ARGV[1] then
    return redis.call('DEL', KEYS[1])
end
return 0
