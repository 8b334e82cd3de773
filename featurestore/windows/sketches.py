"""The two sketches of Apache DataSketches that a tile may hold, as bytes of a bounded size.

Distinct: HLL with 2**12 registers of four bits, at most about 2.5 KB, relative standard error 1.04 / sqrt(2**12) =
1.6 %. Its registers are maxima, so that neither order nor repetition decides; the estimate is taken after a merge of
the sketch with itself, because only then does the library leave out what it knows of the order of updates.

Quantiles: KLL with k = 200, a few KB: the rank of an answer is off by at most `RANK_ERROR` in 99 of 100 cases, and not
at all up to 200 values. It compacts by chance: two sketches of the same values may differ within that error.

Source: Flajolet et al., HyperLogLog, 2007; Karnin, Lang, Liberty, Optimal Quantile Approximation in Streams, 2016;
https://apache.github.io/datasketches-python/5.2.0/

Every function raises `UnreadablePayload` for bytes that are no sketch.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import numpy as np
from datasketches import hll_sketch, hll_union, kll_doubles_sketch, tgt_hll_type

from featurestore.codec import UnreadablePayload

LOG2_REGISTERS: Final = 12
K: Final = 200
RANK_ERROR: Final = float(kll_doubles_sketch(K).normalized_rank_error(False))


def text_of(value: str | int | float) -> str:
    """What is counted as one distinct value: the number 5, the number 5.0 and the text "5" are one."""
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


def with_texts(held: bytes | None, texts: Iterable[str]) -> bytes:
    """The distinct sketch `held`, or a new one, that has seen `texts` too."""
    sketch = hll_sketch(LOG2_REGISTERS, tgt_hll_type.HLL_4) if held is None else _hll(held)
    for text in texts:
        sketch.update(text)
    return bytes(sketch.serialize_compact())


def distinct_union(parts: Sequence[bytes]) -> bytes | None:
    """None of none."""
    if len(parts) < 2:
        return parts[0] if parts else None
    return bytes(_united(_hll(part) for part in parts).serialize_compact())


def distinct_estimate(held: bytes) -> int:
    sketch = _united([_hll(held)])
    return round(float(_united([sketch, sketch]).get_estimate()))


def with_numbers(held: bytes | None, numbers: Sequence[float]) -> bytes:
    """The quantile sketch `held`, or a new one, that has seen `numbers` too; they are finite."""
    sketch = kll_doubles_sketch(K) if held is None else _kll(held)
    sketch.update(np.asarray(numbers, np.float64))
    return bytes(sketch.serialize())


def quantiles_union(parts: Sequence[bytes]) -> bytes | None:
    """None of none."""
    if len(parts) < 2:
        return parts[0] if parts else None
    merged = _kll(parts[0])
    for part in parts[1:]:
        merged.merge(_kll(part))
    return bytes(merged.serialize())


def quantile(held: bytes, rank: float) -> float:
    """The smallest value that at least a share `rank` of all does not exceed, within the rank error."""
    return float(_kll(held).get_quantile(rank, True))


def _united(parts: Iterable[hll_sketch]) -> hll_sketch:
    union = hll_union(LOG2_REGISTERS)
    for part in parts:
        union.update(part)
    return union.get_result(tgt_hll_type.HLL_4)


def _hll(held: bytes) -> hll_sketch:
    try:
        return hll_sketch.deserialize(held)
    except (RuntimeError, ValueError, IndexError, TypeError) as error:
        raise UnreadablePayload(f"{len(held)} bytes are no HLL sketch: {error}") from None


def _kll(held: bytes) -> kll_doubles_sketch:
    try:
        return kll_doubles_sketch.deserialize(held)
    except (RuntimeError, ValueError, IndexError, TypeError) as error:
        raise UnreadablePayload(f"{len(held)} bytes are no KLL sketch: {error}") from None
