"""How a window lies in Redis, and what becomes of an event there.

Per entity one hash: `t:<tile>`, `l:<tile>:<i>`, `k:<tile>:<i>` its tiles (`layout`); `newest` the newest tile seen,
`seed` the tile up to which history was loaded, `w:<source>` the newest event time (us) of each partition, `version` a
token that changes with every change of a window that has sketches. Per tile that the stream has written one set of
`<source>/<offset>`: the events in it. Per view one hash of progress: the instant (us) up to which each partition, or
the seed, has been applied; and a stream of its late events (`late`).
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Mapping
from typing import Final

from featurestore.codec import UnreadablePayload
from featurestore.windows.plan import StoredWindow, WindowPlan

SEEDED: Final = "seed"  # the field of progress that the load of history writes


class Applied(enum.StrEnum):
    """What became of an event: only `applied` changed a tile."""

    APPLIED = "applied"
    DUPLICATE = "duplicate"  # its coordinates are in the tile already
    SEEDED = "seeded"  # history as it was loaded covers its tile
    LATE = "late"  # later than the grace
    EXPIRED = "expired"  # its tile is so old that no reader looks at it


OUTCOMES: Final = {ord(outcome[0]): outcome for outcome in Applied}  # as the functions say it, one byte per event


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
        tiles = {int(name[2:]): plan.layout.tile(name[2:], held) for name in held if name.startswith(b"t:")}
        newest = int(held[b"newest"])
        instants = {source: int(us) for source, us in progress.items()}
    except (KeyError, ValueError, OverflowError, struct.error):
        raise UnreadablePayload(
            f"feature view {plan.view.name}: the hash of an entity was not written by this store"
        ) from None
    seeded = instants.pop(SEEDED.encode(), None)
    streamed = min(instants.values(), default=None)
    known = [us for us in (seeded, streamed) if us is not None]
    num_bytes = sum(len(name) + len(value) for name, value in (*held.items(), *progress.items()))
    return StoredWindow(tiles, newest, max(known, default=None), num_bytes)
