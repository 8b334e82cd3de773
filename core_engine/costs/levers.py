"""What helps where a stage is slow, with the figures that say so: medians of the slow requests and of the others.

A lever names what a user can change: the request, the declaration of a predictor, or a setting.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from statistics import median
from typing import Final, TypeAlias

from core_engine.costs.request_times import RequestTime, Stage

Figures: TypeAlias = dict[str, float]
Requests: TypeAlias = Sequence[RequestTime]
Pick: TypeAlias = Callable[[RequestTime], float | None]

MORE = 1.25  # times the others' median: more, beyond what chance makes of two groups
FEWER_HITS = 0.1  # of cached tokens, as a share of the prompt


def lever_for(stage: Stage, slow: Requests, others: Requests) -> tuple[str, Figures]:
    """In words what would make `stage` shorter, and the figures behind it (`_slow`, `_others`: medians)."""
    return _LEVERS[stage](slow, others)


def _queue(slow: Requests, others: Requests) -> tuple[str, Figures]:
    figures = _both("batch_size", _batch_size, slow, others)
    if any(request.device and request.device.prompt_tokens for request in slow):
        return "more seats (engine.interactive.max_seats), another replica, or fewer bulk seats beside it", figures
    return "another replica, or less beside it: rows wait until a layer of the running step is done", figures


def _prefill(slow: Requests, others: Requests) -> tuple[str, Figures]:
    figures = _both("prompt_tokens", lambda r: r.device.prompt_tokens if r.device else None, slow, others)
    figures |= _both("cached_share", _cached_share, slow, others)
    if _is_more("prompt_tokens", figures):
        return "shorter prompts: the slow ones have longer ones", figures
    if figures.get("cached_share_others", 0.0) - figures.get("cached_share_slow", 0.0) > FEWER_HITS:
        return "the prefix cache: the slow ones miss it; put what prompts share first, or give it more memory", figures
    return "shorter prompts, or more of each in the prefix cache; other work shares the same steps", figures


def _decode(slow: Requests, others: Requests) -> tuple[str, Figures]:
    figures = _both("completion_tokens", lambda r: r.device.completion_tokens if r.device else None, slow, others)
    figures |= _both("ms_per_token", _ms_per_token, slow, others) | _both("batch_size", _batch_size, slow, others)
    if _is_more("ms_per_token", figures) and not _is_more("completion_tokens", figures):
        return "fewer seats per step, or speculation: the slow ones wait longer for each token", figures
    return "fewer tokens: a lower max_tokens, or a stop string", figures


def _features(slow: Requests, others: Requests) -> tuple[str, Figures]:
    figures = _both("reads", lambda r: r.caller.feature.reads, slow, others)
    figures |= _both("round_trips", lambda r: r.caller.feature.round_trips, slow, others)
    figures |= _both("cached", lambda r: r.caller.feature.cached, slow, others)
    figures |= _both("bytes", lambda r: r.caller.feature.bytes, slow, others)
    return "rows kept in the door (features.cache_bytes), or fewer views in the predictor", figures


def _front_end(slow: Requests, others: Requests) -> tuple[str, Figures]:
    figures = _both("caller_cpu_ms", lambda r: r.caller.caller_cpu_s * 1e3 or None, slow, others)
    return "more HTTP workers, or less load on their cores", figures


def _scorer(slow: Requests, others: Requests) -> tuple[str, Figures]:
    figures = _both("batch_size", _batch_size, slow, others)
    figures |= _both("device_ms", lambda r: r.device.device_s * 1e3 if r.device else None, slow, others)
    return "a smaller scorer, or a replica that has the device to itself", figures


def _unanswered(slow: Requests, _: Requests) -> tuple[str, Figures]:
    return "as for the queue; or a longer budget, which the model would have met", _reasons(slow)


def _fallback(slow: Requests, _: Requests) -> tuple[str, Figures]:
    return "whatever keeps the model from answering (see the reasons), or a cheaper rung below it", _reasons(slow)


def _unknown(slow: Requests, _: Requests) -> tuple[str, Figures]:
    told = sum(Stage.UNKNOWN in request.stages for request in slow)
    return "none that the records can name: the engine's facts of these requests are not there", {"requests": told}


_LEVERS: Final[dict[Stage, Callable[[Requests, Requests], tuple[str, Figures]]]] = {
    Stage.QUEUE: _queue,
    Stage.PREFILL: _prefill,
    Stage.DECODE: _decode,
    Stage.FEATURES: _features,
    Stage.FRONT_END: _front_end,
    Stage.SCORER: _scorer,
    Stage.UNANSWERED: _unanswered,
    Stage.FALLBACK: _fallback,
    Stage.UNKNOWN: _unknown,
}


def _both(name: str, pick: Pick, slow: Requests, others: Requests) -> Figures:
    """`pick`'s median in both groups, where any of its requests has it."""
    figures = Figures()
    for suffix, requests in (("slow", slow), ("others", others)):
        if values := [value for request in requests if (value := pick(request)) is not None]:
            figures[f"{name}_{suffix}"] = median(values)
    return figures


def _is_more(name: str, figures: Figures) -> bool:
    slow, others = figures.get(f"{name}_slow"), figures.get(f"{name}_others")
    return slow is not None and others is not None and slow > MORE * others


def _reasons(requests: Requests) -> Figures:
    reasons = (request.caller.reason for request in requests)
    return {str(reason): float(count) for reason, count in Counter(filter(None, reasons)).most_common()}


def _batch_size(request: RequestTime) -> float | None:
    return request.device.batch_size if request.device and request.device.batch_size else None


def _cached_share(request: RequestTime) -> float | None:
    device = request.device
    return device.cached_tokens / device.prompt_tokens if device and device.prompt_tokens else None


def _ms_per_token(request: RequestTime) -> float | None:
    device = request.device
    if device is None or device.decode_s is None or device.completion_tokens < 2:
        return None
    return device.decode_s * 1e3 / (device.completion_tokens - 1)
