-- What a session gained since a place in its log, oldest write first; without fingerprints and content.
-- KEYS: facts, log, meta, gone, notes
-- ARGV: age of what the reader knows in us or '', birth and length of the log that it has read
-- Returns {1 if the session was deleted since, birth, length, {key, note, key, note, …}, entry, value, entry, value, …}.
local facts, log, meta, gone, notes = unpack(KEYS)
local is_deleted = 0
if ARGV[1] ~= '' then
    local time = redis.call('TIME')
    local deleted = redis.call('GET', gone)
    if deleted and time[1] * 1000000 + time[2] - tonumber(ARGV[1]) <= tonumber(deleted) then
        is_deleted = 1
    end
end
local born = redis.call('HGET', meta, 'born') or '0'
local length = redis.call('LLEN', log)
local from = tonumber(ARGV[3])
if born ~= ARGV[2] or length < from then
    from = 0
end
local reply = {is_deleted, born, length, redis.call('HGETALL', notes)}
while from < length do
    local entries = redis.call('LRANGE', log, from, from + 999)
    from = from + 1000
    local fields, wanted = {}, {}
    for _, entry in ipairs(entries) do
        local field = string.match(entry, '^%d+:%x+')
        if field and string.sub(field, 1, 2) ~= '4:' then
            fields[#fields + 1] = field
            wanted[#wanted + 1] = entry
        end
    end
    if #fields > 0 then
        for index, value in ipairs(redis.call('HMGET', facts, unpack(fields))) do
            if value then
                reply[#reply + 1] = wanted[index]
                reply[#reply + 1] = value
            end
        end
    end
end
return reply
