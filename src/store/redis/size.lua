-- The size of the values of a kind, bytes. KEYS: facts. ARGV: the kind with its colon.
local size = 0
for _, field in ipairs(redis.call('HKEYS', KEYS[1])) do
    if string.sub(field, 1, #ARGV[1]) == ARGV[1] then
        size = size + redis.call('HSTRLEN', KEYS[1], field)
    end
end
return size
