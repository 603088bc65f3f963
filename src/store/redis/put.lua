-- Writes records that do not exist yet, all in one step.
-- KEYS: facts, log, meta, fingerprints, drafts, gone
-- ARGV: age of the data in us or '', lifetime in ms or '', most records of a series or '', then for each record its
--       kind, key, time, value, and for a turn: outcome, input, output, cache_read
-- Returns {'deleted'}, or {'ok'} with one outcome per record: nothing if it was written, else what exists.
local facts, log, meta, fingerprints, drafts, gone = unpack(KEYS)
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
if ARGV[1] ~= '' then
    local deleted = redis.call('GET', gone)
    if deleted and now - tonumber(ARGV[1]) <= tonumber(deleted) then
        return {'deleted'}
    end
end

local function add(field, number)
    if number ~= 0 then
        redis.call('HINCRBY', meta, field, string.format('%.0f', number))
    end
end

-- The entry of a turn in the log that counts: its index, and its words.
local function entry_of(field)
    local entries = redis.call('LRANGE', log, 0, -1)
    for index = #entries, 1, -1 do
        local words = {}
        for word in string.gmatch(entries[index], '%S+') do
            words[#words + 1] = word
        end
        if words[1] == field then
            return index - 1, words
        end
    end
end

-- Whether a turn without its whole reply or its usage is there, and this one has more of it.
local function is_completed_by(first, outcome)
    if first == nil or first == '-' or first == 'complete' or outcome == 'interrupted' then
        return false
    end
    return first == 'interrupted' or outcome == 'complete' or (outcome == 'uncounted' and first ~= 'uncounted')
end

local function count_turn(words, sign)
    add('turns', sign)
    for index, field in ipairs({'input', 'output', 'cache_read'}) do
        add(field, sign * tonumber(words[3 + index]))
    end
end

local reply = {'ok'}
local first, last, newest
for index = 4, #ARGV, 8 do
    local kind, key, at, value = ARGV[index], ARGV[index + 1], ARGV[index + 2], ARGV[index + 3]
    local field = kind .. ':' .. key
    local outcome = ARGV[index + 4]
    local words = {field, at, outcome, ARGV[index + 5], ARGV[index + 6], ARGV[index + 7]}
    local entry = field .. ' ' .. at
    local written
    if kind == '5' then
        -- Who repeats one does so soon, and a session may have left thousands.
        written = not redis.call('LPOS', fingerprints, key, 'RANK', -1, 'MAXLEN', 256)
        if written then
            redis.call('RPUSH', fingerprints, key)
            add('records', 1)
        end
    else
        if kind == '1' then
            entry = table.concat(words, ' ')
        end
        written = redis.call('HSETNX', facts, field, value) == 1
        if written then
            add('records', 1)
        elseif kind == '1' then
            local place, before = entry_of(field)
            if before and is_completed_by(before[3], outcome) then
                redis.call('HSET', facts, field, value)
                -- Its place stays: readers know how many entries they have read.
                redis.call('LSET', log, place, '-')
                count_turn(before, -1)
                written = true
            end
        end
        if written then
            redis.call('RPUSH', log, entry)
        end
    end
    if written then
        at = tonumber(at)
        first = math.min(first or at, at)
        last = math.max(last or at, at)
        if kind == '1' then
            newest = math.max(newest or at, at)
            count_turn(words, 1)
        end
    end
    if kind == '1' then
        redis.call('HDEL', drafts, key)
    end
    reply[#reply + 1] = not written and (redis.call('HGET', facts, field) or '') or false
end

if first then
    local function lower(field, number)
        local known = redis.call('HGET', meta, field)
        if not known or tonumber(known) > number then
            redis.call('HSET', meta, field, string.format('%.0f', number))
        end
    end
    local function raise(field, number)
        local known = redis.call('HGET', meta, field)
        if not known or tonumber(known) < number then
            redis.call('HSET', meta, field, string.format('%.0f', number))
        end
    end
    redis.call('HSETNX', meta, 'born', string.format('%.0f', now))
    lower('began', first)
    raise('used', last)
    if newest then raise('newest', newest) end
end

if ARGV[3] ~= '' then
    local entries = redis.call('LRANGE', log, 0, -1)
    table.sort(entries, function(one, other)
        return tonumber(string.match(one, ' (%d+)')) < tonumber(string.match(other, ' (%d+)'))
    end)
    for index = 1, #entries - tonumber(ARGV[3]) do
        redis.call('LREM', log, 1, entries[index])
        redis.call('HDEL', facts, string.match(entries[index], '^%S+'))
        add('records', -1)
    end
end

for index = 1, 5 do
    if ARGV[2] ~= '' then
        redis.call('PEXPIRE', KEYS[index], ARGV[2])
    else
        redis.call('PERSIST', KEYS[index])
    end
end
return reply
