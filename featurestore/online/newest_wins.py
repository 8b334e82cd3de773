"""The one server-side function: keep the newest row of an entity, whatever order writes arrive in.

Three hash fields: `t` event time, `s` sequence (created time, source offset), `p` payload. The first two are integers
written big endian with their sign bit flipped, so that the order of their bytes is the order of the numbers. The
function compares byte by byte: Lua's numbers are doubles (microseconds since 1970 pass 2**53 in the year 2255, offsets
at any time) and its string comparison follows the server's locale.
"""

from __future__ import annotations

import struct
from typing import Final

FUNCTION: Final = "headrace_write_1"  # a changed body takes a new name: two releases may share one server
FIELDS: Final = ("t", "s", "p")

LIBRARY: Final = f"""#!lua name={FUNCTION}
local function newer(a, b)
  for i = 1, #a do
    local x, y = string.byte(a, i), string.byte(b, i) or -1
    if x ~= y then return x > y end
  end
  return false
end

local function write(keys, args)
  local held = redis.call('HMGET', keys[1], 't', 's')
  if held[1] and held[2] and not newer(args[1] .. args[2], held[1] .. held[2]) then return 0 end
  redis.call('HSET', keys[1], 't', args[1], 's', args[2], 'p', args[3])
  redis.call('PEXPIREAT', keys[1], args[4])
  return 1
end

redis.register_function('{FUNCTION}', write)
"""

_BIAS: Final = 2**63
_ONE: Final = struct.Struct(">Q")
_TWO: Final = struct.Struct(">QQ")


def pack_event_time(event_us: int) -> bytes:
    return _ONE.pack(event_us + _BIAS)


def unpack_event_time(packed: bytes) -> int:
    """Raises `struct.error` for anything but eight bytes."""
    return int(_ONE.unpack(packed)[0]) - _BIAS


def pack_sequence(created_us: int, offset: int) -> bytes:
    """Settles equal event times: the row that its source created later, then the one further along in the source."""
    return _TWO.pack(created_us + _BIAS, offset + _BIAS)
