"""How a window lies in Redis, and the server-side functions that change it, each in one atomic step.

Per entity two hashes. The first: `n:<tile>` events and `s:<tile>:<i>` sums in millionths (HINCRBY, exact to 64 bits),
`newest` the newest tile seen, `seed` the tile up to which history was loaded, `w:<source>` the newest event time (ms)
of each partition. The second: `<tile>:<source>/<offset>` of every event in a tile that is kept. Per view one hash of
progress: the instant (us) up to which each partition, or the seed, has been applied.

Lateness is judged against the newest event of the same entity and partition, never against a clock, so that a replay
judges as the first run did.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Final

from featurestore.codec import UnreadablePayload
from featurestore.windows.plan import StoredWindow, Tile, WindowPlan

LIBRARY_NAME: Final = "headrace_window_1"  # a changed body takes a new name: two releases may share one server
APPLY: Final = f"{LIBRARY_NAME}_apply"
SEED: Final = f"{LIBRARY_NAME}_seed"
ADVANCE: Final = f"{LIBRARY_NAME}_advance"
SEEDED: Final = "seed"  # the field of progress that the load of history writes


class Applied(enum.StrEnum):
    """What became of an event: only `applied` changed a tile."""

    APPLIED = "applied"
    DUPLICATE = "duplicate"  # its coordinates are in the tile already
    SEEDED = "seeded"  # history as it was loaded covers its tile
    LATE = "late"  # later than the grace
    EXPIRED = "expired"  # its tile is so old that no reader looks at it


LIBRARY: Final = f"""#!lua name={LIBRARY_NAME}
local function prune(hash, applied, newest, kept)
  for _, name in ipairs(redis.call('HKEYS', hash)) do
    local tile = string.match(name, '^[ns]:(%-?%d+)')
    if tile and tonumber(tile) <= newest - kept then redis.call('HDEL', hash, name) end
  end
  for _, name in ipairs(redis.call('HKEYS', applied)) do
    if tonumber(string.match(name, '^(%-?%d+):')) <= newest - kept then redis.call('HDEL', applied, name) end
  end
end

-- keys: tiles, applied; args: source, offset, event_ms, tile, end_ms, grace_ms, kept_tiles, lifetime_ms, amounts...
local function apply(keys, args)
  local source, event_ms, tile, kept = args[1], tonumber(args[3]), tonumber(args[4]), tonumber(args[7])
  local held = redis.call('HMGET', keys[1], 'seed', 'newest', 'w:' .. source)
  local newest, watermark = tonumber(held[2] or tile), tonumber(held[3] or event_ms)
  if held[1] and tile <= tonumber(held[1]) then return 'seeded' end
  if tile <= newest - kept then return 'expired' end
  if redis.call('HEXISTS', keys[2], args[4] .. ':' .. source .. '/' .. args[2]) == 1 then return 'duplicate' end
  if tonumber(args[5]) + tonumber(args[6]) < watermark then return 'late' end
  redis.call('HSET', keys[2], args[4] .. ':' .. source .. '/' .. args[2], '')
  redis.call('HINCRBY', keys[1], 'n:' .. args[4], 1)
  for i = 9, #args do redis.call('HINCRBY', keys[1], 's:' .. args[4] .. ':' .. (i - 9), args[i]) end
  if event_ms >= watermark then redis.call('HSET', keys[1], 'w:' .. source, args[3]) end
  if tile > newest or not held[2] then
    redis.call('HSET', keys[1], 'newest', args[4])
    prune(keys[1], keys[2], tile, kept)
  end
  redis.call('PEXPIRE', keys[1], args[8])
  redis.call('PEXPIRE', keys[2], args[8])
  return 'applied'
end

-- keys: tiles, applied; args: seed tile, kept_tiles, lifetime_ms, number of sums, then tile, events, sums... each
local function seed(keys, args)
  local upto, num_sums = tonumber(args[1]), tonumber(args[4])
  local held = redis.call('HMGET', keys[1], 'seed', 'newest')
  if held[1] and tonumber(held[1]) >= upto then return 0 end
  for _, name in ipairs(redis.call('HKEYS', keys[1])) do
    local tile = string.match(name, '^[ns]:(%-?%d+)')
    if tile and tonumber(tile) <= upto then redis.call('HDEL', keys[1], name) end
  end
  redis.call('HSET', keys[1], 'seed', args[1])
  for i = 5, #args, num_sums + 2 do
    redis.call('HSET', keys[1], 'n:' .. args[i], args[i + 1])
    for j = 1, num_sums do redis.call('HSET', keys[1], 's:' .. args[i] .. ':' .. (j - 1), args[i + 1 + j]) end
  end
  if not held[2] or tonumber(held[2]) < upto then
    redis.call('HSET', keys[1], 'newest', args[1])
    prune(keys[1], keys[2], upto, tonumber(args[2]))
  end
  redis.call('PEXPIRE', keys[1], args[3])
  return 1
end

-- keys: progress; args: source, us, lifetime_ms
local function advance(keys, args)
  local held = redis.call('HGET', keys[1], args[1])
  redis.call('PEXPIRE', keys[1], args[3])
  if held and tonumber(held) >= tonumber(args[2]) then return 0 end
  redis.call('HSET', keys[1], args[1], args[2])
  redis.call('PEXPIRE', keys[1], args[3])
  return 1
end

redis.register_function('{APPLY}', apply)
redis.register_function('{SEED}', seed)
redis.register_function('{ADVANCE}', advance)
"""


def stored_window(
    plan: WindowPlan, held: Mapping[bytes, bytes], progress: Mapping[bytes, bytes]
) -> StoredWindow | None:
    """What the two hashes say; None where the entity has none.

    Complete is what every partition has passed, or what history covered, whichever is later.

    Raises:
        UnreadablePayload: a hash that this store did not write.
    """
    if not held:
        return None
    try:
        tiles = {
            int(name[2:]): Tile(
                int(events), tuple(int(held[b"s:%b:%d" % (name[2:], i)]) for i in range(len(plan.measures)))
            )
            for name, events in held.items()
            if name.startswith(b"n:")
        }
        newest = int(held[b"newest"])
        instants = {source: int(us) for source, us in progress.items()}
    except (KeyError, ValueError):
        raise UnreadablePayload(
            f"feature view {plan.view.name}: the hash of an entity was not written by this store"
        ) from None
    seeded = instants.pop(SEEDED.encode(), None)
    streamed = min(instants.values(), default=None)
    known = [us for us in (seeded, streamed) if us is not None]
    num_bytes = sum(len(name) + len(value) for name, value in (*held.items(), *progress.items()))
    return StoredWindow(tiles, newest, max(known, default=None), num_bytes)
