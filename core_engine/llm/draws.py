"""Draws a token from logits at a temperature: top-k, then top-p, then min-p, then one uniform number decides.

The filters and their order are those of transformers' warpers. Among equally likely tokens the lower id comes first. A
row is drawn from by itself, so a request's draws are its own, whatever runs beside it; and in NumPy, for one row is
just long enough to be split over torch's threads, whose barrier costs more than it saves.
"""

from __future__ import annotations

import hashlib
import math

import numpy as np
from numpy.typing import NDArray

from core_engine.contracts import SamplingParams

MIN_TEMPERATURE = 1e-6  # a lower one is taken as this, which float32 can still divide by
BUCKETS_PER_NAT, NUM_BUCKETS = 8, 256  # of log-probability below the most likely token's; the last holds the rest
BLOCK = 256  # token ids whose probabilities are summed at once

Row = NDArray[np.float32]  # [vocab]


def uniform(seed: bytes, position: int) -> float:
    """Number `position` of the stream `seed` (at most 64 bytes), in [0, 1). A recomputed sequence draws the same again.

    Source: the idea is Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011, with BLAKE2b as cipher.
    """
    digest = hashlib.blake2b(position.to_bytes(8, "little"), key=seed, digest_size=8).digest()
    return (int.from_bytes(digest, "little") >> 11) * 2.0**-53


def draw(logits: Row, sampling: SamplingParams, quantile: float) -> int:
    """The token id at `quantile` in [0, 1) of the filtered distribution, over token ids.

    `logits` [vocab] has a finite maximum. On one core, 49,152 tokens: 0.1 ms, with top-k or top-p 0.25 ms; to sort them
    all would take 4 ms.

    Source: Holtzman et al., "The Curious Case of Neural Text Degeneration", 2020, section 3.1 (top-p); Nguyen et al.,
    "Turning Up the Heat: Min-p Sampling for Creative and Coherent LLM Outputs", 2025, section 3 (min-p).
    """
    with np.errstate(over="ignore"):  # to -inf, as it should
        scaled = (logits - logits.max()) / np.float32(max(sampling.temperature, MIN_TEMPERATURE))
    probs = np.exp(scaled)  # of the most likely token 1; only ratios matter
    has_top_k, has_top_p = 0 < sampling.top_k < len(logits), sampling.top_p < 1
    if has_top_k or has_top_p:
        buckets = np.minimum(scaled * np.float32(-BUCKETS_PER_NAT), NUM_BUCKETS - 1).astype(np.intp)
        if has_top_k:
            probs[scaled < _kth(scaled, buckets, sampling.top_k)] = 0
        if has_top_p:
            _keep_top_p(probs, buckets, sampling.top_p)
    if sampling.min_p > 0:
        probs[scaled < math.log(sampling.min_p)] = 0
    return _at_quantile(probs, quantile)


def _kth(scaled: Row, buckets: NDArray[np.intp], k: int) -> np.float32:
    """The `k`-th largest value: every token as likely as it stays, as in transformers."""
    num_before = np.bincount(buckets, minlength=NUM_BUCKETS).cumsum()
    bucket = int(num_before.searchsorted(k))
    members = scaled[buckets == bucket]
    rank = k - int(num_before[bucket - 1]) if bucket else k  # in the bucket, from 1
    value: np.float32 = np.partition(members, len(members) - rank)[len(members) - rank]
    return value


def _keep_top_p(probs: Row, buckets: NDArray[np.intp], top_p: float) -> None:
    """Zero all but the smallest set of most likely tokens that reaches `top_p` of the whole, in place.

    Only the bucket in which it is reached has to be sorted.
    """
    reached = np.bincount(buckets, weights=probs, minlength=NUM_BUCKETS).cumsum()
    wanted = top_p * reached[-1]
    bucket = int(reached.searchsorted(wanted))
    probs[buckets > bucket] = 0
    members = np.flatnonzero(buckets == bucket)
    members = members[np.argsort(-probs[members], kind="stable")]  # equal ones by id
    own = probs[members].astype(np.float64)
    before = own.cumsum() - own + (reached[bucket - 1] if bucket else 0.0)  # what more likely tokens hold
    before[0] = 0.0  # at least one token always stays
    probs[members[before >= wanted]] = 0


def _at_quantile(probs: Row, quantile: float) -> int:
    """The first token up to which more than `quantile` of the whole lies: first the block, then the token in it."""
    blocks = np.add.reduceat(probs, np.arange(0, len(probs), BLOCK), dtype=np.float64).cumsum()
    wanted = quantile * blocks[-1]
    block = int(blocks.searchsorted(wanted, side="right"))
    own = probs[block * BLOCK : (block + 1) * BLOCK].cumsum(dtype=np.float64)
    place = int(own.searchsorted(wanted - (blocks[block - 1] if block else 0.0), side="right"))
    # rounding may put the quantile past the block's end: then it is the block's last token that has any probability
    return block * BLOCK + (place if place < len(own) else int(np.flatnonzero(np.diff(own, prepend=0.0))[-1]))
