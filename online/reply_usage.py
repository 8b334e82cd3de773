"""What a reply says of itself: OpenAI's usage object, and the `headrace` block of a request that asks for it."""

from __future__ import annotations

from collections.abc import Sequence as Items
from typing import Any

from core_engine.contracts import Usage
from online.generation import Generations


def usage_of(work: Generations) -> dict[str, Any]:
    """Of all choices. A prompt counts once, however many choices it has.

    Its cached tokens are those of the choice that found fewest: what a choice found because its sibling had just
    computed it was not there before.
    """
    n, requests, usages = work.call.n, work.call.requests, _usages(work)
    prompt_tokens = sum(len(request.prompt_token_ids) for request in requests[::n])
    completion_tokens = sum(meter.num_tokens for meter in work.meters)
    cached = [min(usage.cached_tokens for usage in usages[at : at + n]) for at in range(0, len(usages), n)]
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
        "prompt_tokens_details": {"cached_tokens": sum(cached)},
    }


def times_of(work: Generations, now_s: float) -> dict[str, Any]:
    """The `headrace` block. TTFT is that of the choice that spoke first; TPOT is the mean over the choices."""
    arrived_s, meters = work.context.arrived_s, work.meters
    firsts = [meter.first_s - arrived_s for meter in meters if meter.first_s is not None]
    tpots = [meter.tpot_s for meter in meters if meter.tpot_s is not None]
    return headrace_block(
        _usages(work),
        e2e_s=now_s - arrived_s,
        ttft_s=min(firsts, default=None),
        tpot_s=sum(tpots) / len(tpots) if tpots else None,
    )


def headrace_block(
    usages: Items[Usage], *, e2e_s: float, ttft_s: float | None = None, tpot_s: float | None = None
) -> dict[str, Any]:
    """Milliseconds; None where there is nothing to say. `queue_ms` is the longest wait in the engine, `device_ms` the
    device's time summed. `cost` is None: money is made at report time, from the facts of this attempt.
    """
    return {
        "ttft_ms": _ms(ttft_s),
        "tpot_ms": _ms(tpot_s),
        "queue_ms": _ms(max((usage.queue_s for usage in usages), default=None)),
        "e2e_ms": _ms(e2e_s),
        "device_ms": _ms(sum(usage.device_s for usage in usages)),
        "cost": None,
    }


def _usages(work: Generations) -> list[Usage]:
    return [meter.usage or Usage() for meter in work.meters]


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1e3, 3)
