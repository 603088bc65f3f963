-- Changes sums of spending. KEYS: the sums.
-- ARGV: 'add' or 'raise', then for each sum US dollars, tokens, and how long it lives from now on in ms
-- Returns dollars, tokens, dollars, tokens, … Adding nothing writes nothing.
local reply = {}
for index, key in ipairs(KEYS) do
    local dollars, tokens, life = unpack(ARGV, 3 * index - 1, 3 * index + 1)
    local known = redis.call('HMGET', key, 'dollars', 'tokens')
    local more = {tonumber(dollars), tonumber(tokens)}
    if ARGV[1] == 'raise' then
        more = {more[1] - tonumber(known[1] or 0), more[2] - tonumber(known[2] or 0)}
    end
    if more[1] > 0 or more[2] > 0 then
        known[1] = redis.call('HINCRBYFLOAT', key, 'dollars', string.format('%.9f', math.max(more[1], 0)))
        known[2] = redis.call('HINCRBY', key, 'tokens', string.format('%.0f', math.max(more[2], 0)))
        redis.call('PEXPIRE', key, life)
    end
    reply[2 * index - 1] = tostring(known[1] or 0)
    reply[2 * index] = tostring(known[2] or 0)
end
return reply
