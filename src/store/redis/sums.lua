-- Changes sums of spending. KEYS: the number of the process's last addition, then the sums.
-- ARGV: 'add' or 'raise', how long that is remembered in ms, the number of this addition, then for each sum US dollars, tokens,
-- and how long it lives from now on in ms
-- Returns dollars, tokens, dollars, tokens, … Adding nothing writes nothing, and what is added again is added once.
local is_repeated = false
local function adds()
    for at = 4, #ARGV, 3 do
        if tonumber(ARGV[at]) > 0 or tonumber(ARGV[at + 1]) > 0 then return true end
    end
    return false
end
if ARGV[1] == 'add' and adds() then
    is_repeated = tonumber(ARGV[3]) <= tonumber(redis.call('GET', KEYS[1]) or 0)
    if not is_repeated then
        redis.call('SET', KEYS[1], ARGV[3], 'PX', ARGV[2])
    end
end
local reply = {}
for index = 1, #KEYS - 1 do
    local key = KEYS[index + 1]
    local dollars, tokens, life = unpack(ARGV, 3 * index + 1, 3 * index + 3)
    local known = redis.call('HMGET', key, 'dollars', 'tokens')
    local more = {tonumber(dollars), tonumber(tokens)}
    if ARGV[1] == 'raise' then
        more = {more[1] - tonumber(known[1] or 0), more[2] - tonumber(known[2] or 0)}
    end
    if not is_repeated and (more[1] > 0 or more[2] > 0) then
        known[1] = redis.call('HINCRBYFLOAT', key, 'dollars', string.format('%.9f', math.max(more[1], 0)))
        known[2] = redis.call('HINCRBY', key, 'tokens', string.format('%.0f', math.max(more[2], 0)))
        redis.call('PEXPIRE', key, life)
    end
    reply[2 * index - 1] = tostring(known[1] or 0)
    reply[2 * index] = tostring(known[2] or 0)
end
return reply
