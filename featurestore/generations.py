"""How prediction generations lie in Redis, and the three server-side functions that change them.

A generation is one hash, entity to value; its field "" (no entity has that key) is the seal: once it is there nothing
is written any more. The pointer of a predictor version is a hash of the current generation, its fence and the one
before. Both carry the version as the cluster's hash tag, so that one function may touch them together.
"""

from __future__ import annotations

from typing import Final, TypeAlias

import msgspec

from core_engine.errors import HeadraceError

WRITE: Final = "headrace_generation_write_1"  # a changed body takes a new name: two releases may share one server
SEAL: Final = "headrace_generation_seal_1"
FLIP: Final = "headrace_generation_flip_1"
SEAL_FIELD: Final = b""
SEALED: Final = -1
Value: TypeAlias = float | str | None

# A sealed generation answers -1 to whatever would change it. Fences pass through Lua's doubles, exact up to 2**53: a
# fence counts milliseconds since 1970.
LIBRARY: Final = f"""#!lua name=headrace_generations_1
local function write(keys, args)
  if redis.call('HEXISTS', keys[1], '') == 1 then return -1 end
  local added = 0
  for i = 2, #args, 2 do added = added + redis.call('HSET', keys[1], args[i], args[i + 1]) end
  redis.call('PEXPIRE', keys[1], args[1])
  return added
end

local function seal(keys, args)
  if redis.call('HEXISTS', keys[1], '') == 1 then return -1 end
  local held = redis.call('HLEN', keys[1])
  if held == tonumber(args[1]) then redis.call('HSET', keys[1], '', args[2]) end
  return held
end

local function flip(keys, args)
  local held = redis.call('HMGET', keys[1], 'generation', 'fence')
  local current, fence = held[1] or '', tonumber(held[2] or '0')
  if current == args[2] then return 'flipped' end
  if fence >= tonumber(args[3]) then return 'fenced' end
  if current ~= args[1] then return 'moved' end
  if redis.call('HEXISTS', keys[2], '') == 0 then return 'gone' end
  redis.call('PERSIST', keys[2])
  if current ~= '' then redis.call('PEXPIRE', keys[3], args[4]) end
  redis.call('HSET', keys[1], 'generation', args[2], 'fence', args[3], 'previous', current)
  return 'flipped'
end

redis.register_function('{WRITE}', write)
redis.register_function('{SEAL}', seal)
redis.register_function('{FLIP}', flip)
"""


class GenerationFault(HeadraceError):
    """A generation that cannot be published as it is: incomplete, altered, or gone before the flip. Write it again."""

    retryable = True
    code = "generation_fault"


class Superseded(HeadraceError):
    """A newer generation is published already; an older fence never flips over it."""

    status = 409
    code = "superseded"


class Seal(msgspec.Struct, frozen=True, array_like=True):
    """What a whole generation says of itself: `as_of_us` is the instant as of which its values were computed."""

    as_of_us: int
    num_predictions: int
    layout: int = 1


def pointer_key(predictor: str) -> str:
    return f"hr:predictions:{{{predictor}}}"


def generation_key(predictor: str, generation: str) -> str:
    return f"hr:predictions:{{{predictor}}}:{generation}"


_VALUES: msgspec.msgpack.Decoder[float | str | None] = msgspec.msgpack.Decoder(float | str | None)
_SEALS: msgspec.msgpack.Decoder[Seal] = msgspec.msgpack.Decoder(Seal)


def encode_value(value: Value) -> bytes:
    """MessagePack: nine bytes of a float, the bytes of a text and a few more."""
    return msgspec.msgpack.encode(value)


def decode_value(payload: bytes) -> Value:
    """Raises `msgspec.DecodeError` for what `encode_value` did not write."""
    return _VALUES.decode(payload)


def decode_seal(payload: bytes) -> Seal:
    """Raises `msgspec.DecodeError` for what is no seal."""
    return _SEALS.decode(payload)
