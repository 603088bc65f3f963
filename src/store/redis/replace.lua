-- Replaces a value that is still the known one. KEYS: it. ARGV: the known value, '' if there was none, and the new one
if (redis.call('GET', KEYS[1]) or '') ~= ARGV[1] then
    return 0
end
redis.call('SET', KEYS[1], ARGV[2])
return 1
