-- Deletes a session.
-- KEYS: facts, log, meta, fingerprints, drafts, gone, notes
-- ARGV: '' on request, else the time of its last use as it was known: if it was used since, it stays
--       how long a deletion on request is remembered, ms
-- Returns {-1, used} if it stays, else the number of its records, and its fingerprints.
local used = redis.call('HGET', KEYS[3], 'used')
if ARGV[1] == '' then
    local time = redis.call('TIME')
    redis.call('SET', KEYS[6], string.format('%.0f', time[1] * 1000000 + time[2]), 'PX', ARGV[2])
elseif used and tonumber(used) > tonumber(ARGV[1]) then
    return {-1, used}
end
local reply = redis.call('LRANGE', KEYS[4], 0, -1)
table.insert(reply, 1, tonumber(redis.call('HGET', KEYS[3], 'records') or 0))
redis.call('DEL', KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[7])
if ARGV[1] == '' then
    redis.call('DEL', KEYS[5])
end
return reply
