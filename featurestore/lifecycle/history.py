"""A view's history as a run sees it: which rows are to be written, in which order, and whether it is still the same.

A row is known from the later of its two clocks. Rows are written in the order in which they became known, so that how
far a shard is, is one row: everything before it is online.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from featurestore.lifecycle.watermarks import Cursor
from featurestore.offline.source import Source
from featurestore.offline.timeline import newest_positions

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Shard:
    """Rows to be written, oldest knowledge first: places in the source, and since when each is known. One length."""

    number: int
    positions: NDArray[np.int64]
    known_us: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.positions)


def shard_of(key: str, num_shards: int) -> int:
    """CRC-32 of the key's UTF-8, modulo `num_shards`: the same in every process and release."""
    return zlib.crc32(key.encode()) % num_shards


def shards(
    source: Source, as_of_us: int, since_us: int | None, num_shards: int, cursors: Mapping[int, Cursor]
) -> list[Shard]:
    """Every entity's newest row known at `as_of_us`, where it became known after `since_us` and its shard's cursor.

    An entity whose newest row was known by then has it online already: what became known since is not newer.
    """
    positions = newest_positions(source, as_of_us)
    known_us = _known_us(source).to_numpy(zero_copy_only=False)[positions]
    if since_us is not None:
        positions, known_us = positions[known_us > since_us], known_us[known_us > since_us]
    order = np.lexsort((positions, known_us))
    positions, known_us = positions[order], known_us[order]
    keys = source.keys.take(pa.array(positions)).to_pylist()
    numbers = np.fromiter((shard_of(key, num_shards) for key in keys), np.int64, len(keys))
    return [
        _behind(Shard(number, positions[numbers == number], known_us[numbers == number]), cursors.get(number))
        for number in range(num_shards)
    ]


def digest(source: Source, as_of_us: int) -> str:
    """BLAKE2b (RFC 7693) over place, key and both clocks of the rows known at `as_of_us`.

    It differs where a row came late (its created time lies before it could be read), went, or moved; not where the
    values of a row were changed under the same clocks.
    """
    positions = pc.indices_nonzero(pc.less_equal(_known_us(source), as_of_us))
    keys = source.keys.take(positions)
    hashed = hashlib.blake2b(digest_size=20)
    for column in (positions, source.event_us.take(positions), source.created_us.take(positions)):
        hashed.update(column.to_numpy(zero_copy_only=False).tobytes())
    if len(keys):
        _, offsets, data = keys.buffers()  # of a new array: its text begins at 0
        ends = np.frombuffer(offsets, np.int32)[: len(keys) + 1]
        hashed.update(ends.tobytes())
        hashed.update(memoryview(data)[: ends[-1]])
    return hashed.hexdigest()


def _known_us(source: Source) -> pa.Array:
    return pc.max_element_wise(source.event_us, source.created_us)


def _behind(shard: Shard, cursor: Cursor | None) -> Shard:
    """What of `shard` its cursor has not passed."""
    if cursor is None:
        return shard
    is_known_later = shard.known_us > cursor.known_us
    is_behind = is_known_later | ((shard.known_us == cursor.known_us) & (shard.positions > cursor.position))
    return Shard(shard.number, shard.positions[is_behind], shard.known_us[is_behind])
