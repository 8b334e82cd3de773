#!lua name=headrace_window_2
-- Windows in Redis, changed in atomic steps. `state.py` says how a window lies here, `batches.py` packs the arguments.
-- Numbers are doubles: the caller keeps those of an event within 2^53. Everything is read and judged before anything is
-- written, so that an error leaves nothing half done.

local HEAD = 4 -- numbers of an event before its amounts: its tile and source (places in the arguments), offset, us
local FEW = 16 -- tiles that are dropped by their names; of more the names are looked up
local NAMED = 10 -- arguments before the tiles and sources

local function doubles(n) return '<' .. string.rep('d', n) end

local function whole(number) return string.format('%.0f', number) end

-- Drops the tiles up to `upto`. Their coordinates lie in keys of the same slot, by the hash tag.
local function forget(keys, upto)
  for _, name in ipairs(redis.call('HKEYS', keys[1])) do
    local kind, tile = string.match(name, '^([tlk]):(%-?%d+)')
    if tile and tonumber(tile) <= upto then
      redis.call('HDEL', keys[1], name)
      if kind == 't' then redis.call('UNLINK', keys[2] .. ':' .. tile) end
    end
  end
end

-- Drops what is `kept` tiles behind the newest. All before that were dropped when the last one became the newest.
local function move_on(keys, batch, kept)
  local from, upto = batch.was_newest and batch.was_newest - kept, batch.newest - kept
  if not from and #batch.tiles == 1 then return end
  if not from or upto - from > FEW then return forget(keys, upto) end
  local fields, coordinates = {}, {}
  for tile = from + 1, upto do
    local name = whole(tile)
    fields[#fields + 1] = 't:' .. name
    for i = 1, #batch.sizes do fields[#fields + 1] = 'l:' .. name .. ':' .. (i - 1) end
    for i = 1, batch.num_sketches do fields[#fields + 1] = 'k:' .. name .. ':' .. (i - 1) end
    coordinates[#coordinates + 1] = keys[2] .. ':' .. name
  end
  redis.call('HDEL', keys[1], unpack(fields))
  redis.call('UNLINK', unpack(coordinates))
end

-- The arguments, with what is held of the tiles and sources that they name.
local function held(keys, args)
  local num_tiles, num_sources = tonumber(args[8]), tonumber(args[9])
  local batch = { tiles = {}, sources = {}, sizes = {}, num_sketches = tonumber(args[7]) }
  batch.next = NAMED + num_tiles + num_sources + 1
  local names = { 'seed', 'newest', 'version' }
  for i = 1, num_tiles do names[3 + i] = 't:' .. args[NAMED + i] end
  for i = NAMED + num_tiles + 1, batch.next - 1 do names[#names + 1] = 'w:' .. args[i] end
  local values = redis.call('HMGET', keys[1], unpack(names))
  batch.seed, batch.newest, batch.version = tonumber(values[1]), tonumber(values[2]), values[3] or ''
  batch.was_newest = batch.newest
  for i = 1, num_tiles do
    local name, totals = args[NAMED + i], values[3 + i]
    local tile = { name = name, number = tonumber(name), totals = totals, asked = {}, seen = {} }
    tile.fresh, tile.events = {}, {} -- what is applied now
    batch.tiles[i] = tile
  end
  for i = 1, num_sources do
    local watermark = tonumber(values[3 + num_tiles + i])
    batch.sources[i] = { name = args[NAMED + num_tiles + i], watermark = watermark }
  end
  for size in string.gmatch(args[6], '%d+') do batch.sizes[#batch.sizes + 1] = tonumber(size) end
  return batch
end

-- The events; `member` is what stands for one in its tile's coordinates.
local function unpacked(args, batch)
  local events, width = {}, HEAD + #args[5] + #batch.sizes
  local format = doubles(width)
  for at = 1, #args[10], 8 * width do
    local event = { struct.unpack(format, args[10], at) }
    event.tile, event.source = batch.tiles[event[1]], batch.sources[event[2]]
    event.member = event.source.name .. '/' .. whole(event[3])
    table.insert(event.tile.asked, event.member)
    events[#events + 1] = event
  end
  return events
end

-- One event after the other, as if each came by itself: (d)uplicate, (s)eeded, (l)ate, (e)xpired or (a)pplied. Late is
-- judged against the newest event of the same source, never against a clock, so that a replay judges as the first run.
local function judge(event, batch, tile_us, grace_us, kept)
  local tile, source = event.tile, event.source
  if batch.seed and tile.number <= batch.seed then return 's' end
  if batch.newest and tile.number <= batch.newest - kept then return 'e' end
  if tile.seen[event.member] then return 'd' end
  if source.watermark and tile.number * tile_us + grace_us < source.watermark then return 'l' end
  tile.seen[event.member] = true
  table.insert(tile.fresh, event.member)
  table.insert(tile.events, event)
  if not source.watermark or event[4] > source.watermark then source.watermark, source.moved = event[4], true end
  if not batch.newest or tile.number > batch.newest then batch.newest, batch.moved = tile.number, true end
  return 'a'
end

-- keys: tiles, applied; args: tile_us, grace_us, kept_tiles, lifetime_ms, how each amount is added (+, < or >), sizes
-- of the lists of the newest, number of sketches of a tile, of tiles, of sources, events, tiles..., sources...
local function judged(keys, args)
  local batch = held(keys, args)
  local events, outcomes = unpacked(args, batch), {}
  for _, tile in ipairs(batch.tiles) do
    if tile.totals then -- else it has no events
      for i, is in ipairs(redis.call('SMISMEMBER', keys[2] .. ':' .. tile.name, unpack(tile.asked))) do
        if is == 1 then tile.seen[tile.asked[i]] = true end
      end
    end
  end
  local tile_us, grace_us, kept = tonumber(args[1]), tonumber(args[2]), tonumber(args[3])
  for i, event in ipairs(events) do outcomes[i] = judge(event, batch, tile_us, grace_us, kept) end
  batch.outcomes = table.concat(outcomes)
  return batch
end

-- The tile's count and amounts with its new events.
local function totals(tile, how)
  local format, codes, sums = doubles(1 + #how), { string.byte(how, 1, -1) }, nil
  if tile.totals then sums = { struct.unpack(format, tile.totals) } end
  for _, event in ipairs(tile.events) do
    if not sums then
      sums = { 1, unpack(event, HEAD + 1, HEAD + #how) }
    else
      sums[1] = sums[1] + 1
      for i = 1, #codes do
        local amount = event[HEAD + i]
        if codes[i] == 43 then
          sums[i + 1] = sums[i + 1] + amount
        elseif codes[i] == 60 then
          if amount < sums[i + 1] then sums[i + 1] = amount end
        elseif amount > sums[i + 1] then
          sums[i + 1] = amount
        end
      end
    end
  end
  return struct.pack(format, unpack(sums, 1, 1 + #how))
end

-- By (time, source, offset); sources by their bytes, because the server's locale would order them by its own rules.
local function is_newer(one, other)
  if one.us ~= other.us then return one.us > other.us end
  for i = 1, math.min(#one.source, #other.source) do
    local a, b = string.byte(one.source, i), string.byte(other.source, i)
    if a ~= b then return a > b end
  end
  if #one.source ~= #other.source then return #one.source > #other.source end
  return one.offset > other.offset
end

-- A list of the newest, newest first, with the tile's new events; `column` is the place of their amount.
local function newest(packed, tile, column, size)
  local list, at = {}, 1
  while packed and at <= #packed do
    local entry = {}
    entry.us, entry.offset, entry.amount, entry.source, at = struct.unpack('<ddds', packed, at)
    list[#list + 1] = entry
  end
  for _, event in ipairs(tile.events) do
    local entry = { us = event[4], offset = event[3], amount = event[column], source = event.source.name }
    local place = 1
    while place <= #list and not is_newer(entry, list[place]) do place = place + 1 end
    table.insert(list, place, entry)
    list[size + 1] = nil
  end
  for i, entry in ipairs(list) do list[i] = struct.pack('<ddds', entry.us, entry.offset, entry.amount, entry.source) end
  return table.concat(list)
end

local function set(fields, name, value)
  fields[#fields + 1] = name
  fields[#fields + 1] = value
end

-- Adds what changes in the hash to `fields`.
local function change_tile(keys, args, batch, tile, fields)
  set(fields, 't:' .. tile.name, totals(tile, args[5]))
  for i, size in ipairs(batch.sizes) do
    local name = 'l:' .. tile.name .. ':' .. (i - 1)
    set(fields, name, newest(redis.call('HGET', keys[1], name), tile, HEAD + #args[5] + i, size))
  end
end

-- The coordinates live as long as the hash may, and then until their tile has left it: else one would count twice.
local function keep_coordinates(keys, args, tile)
  local applied = keys[2] .. ':' .. tile.name
  redis.call('SADD', applied, unpack(tile.fresh))
  redis.call('PEXPIRE', applied, whole(tonumber(args[4]) + math.ceil(tonumber(args[3]) * tonumber(args[1]) / 1000)))
end

-- What would become of each event, the version that this holds for, and the sketches of the tiles.
-- args: as `judged`
local function peek(keys, args)
  local batch = judged(keys, args)
  local reply = { batch.outcomes, batch.version }
  for _, tile in ipairs(batch.tiles) do
    for i = 1, batch.num_sketches do
      reply[#reply + 1] = redis.call('HGET', keys[1], 'k:' .. tile.name .. ':' .. (i - 1))
    end
  end
  return reply
end

-- What became of each event; empty if the version is not the expected one, and then nothing was done.
-- args: as `judged`, then, where tiles have sketches, version expected, new version, name and bytes of each sketch...
local function apply(keys, args)
  local batch = judged(keys, args)
  local fields = {}
  if args[batch.next] then
    if args[batch.next] ~= batch.version then return '' end
    fields = { 'version', unpack(args, batch.next + 1) }
  end
  if not string.find(batch.outcomes, 'a') then return batch.outcomes end
  for _, tile in ipairs(batch.tiles) do
    if #tile.events > 0 then change_tile(keys, args, batch, tile, fields) end
  end
  for _, source in ipairs(batch.sources) do
    if source.moved then set(fields, 'w:' .. source.name, whole(source.watermark)) end
  end
  if batch.moved then set(fields, 'newest', whole(batch.newest)) end
  for _, tile in ipairs(batch.tiles) do
    if #tile.events > 0 then keep_coordinates(keys, args, tile) end
  end
  redis.call('HSET', keys[1], unpack(fields))
  if batch.moved then move_on(keys, batch, tonumber(args[3])) end
  redis.call('PEXPIRE', keys[1], args[4])
  return batch.outcomes
end

-- History up to a tile, which replaces what the stream said of it, unless as much was loaded before.
-- keys: tiles, applied; args: last tile, kept_tiles, lifetime_ms, new version, name and value of each field...
local function seed(keys, args)
  local upto = tonumber(args[1])
  local values = redis.call('HMGET', keys[1], 'seed', 'newest')
  if values[1] and tonumber(values[1]) >= upto then return 0 end
  forget(keys, upto)
  redis.call('HSET', keys[1], 'seed', args[1], 'version', args[4])
  for i = 5, #args, 2 do redis.call('HSET', keys[1], args[i], args[i + 1]) end
  if not values[2] or tonumber(values[2]) < upto then redis.call('HSET', keys[1], 'newest', args[1]) end
  forget(keys, math.max(upto, tonumber(values[2] or upto)) - tonumber(args[2]))
  redis.call('PEXPIRE', keys[1], args[3])
  return 1
end

-- keys: progress; args: source, us, lifetime_ms
local function advance(keys, args)
  local us = redis.call('HGET', keys[1], args[1])
  local moves = not us or tonumber(us) < tonumber(args[2])
  if moves then redis.call('HSET', keys[1], args[1], args[2]) end
  redis.call('PEXPIRE', keys[1], args[3])
  return moves and 1 or 0
end

redis.register_function('headrace_window_2_apply', apply)
redis.register_function('headrace_window_2_peek', peek)
redis.register_function('headrace_window_2_seed', seed)
redis.register_function('headrace_window_2_advance', advance)
