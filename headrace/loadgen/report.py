"""What a run measured, as JSON's types, under the keys of vLLM's serving benchmark where they mean the same.

Latencies are those of good answers, counted from the instant at which a request was due; what failed is counted by its
kind beside them, and misses every objective. A percentile that the samples cannot carry is null and is named.
Source of the keys: vLLM, `vllm bench serve --save-result` (`mean_ttft_ms`, `p99_tpot_ms`, `request_goodput`, ...).
"""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final, TypeAlias

from core_engine.errors import ConfigurationError
from core_engine.simulation.report import percentile
from headrace.loadgen.connections import ConnectionPool
from headrace.loadgen.load_run import LoadRun, Record
from headrace.loadgen.replies import Answer
from headrace.loadgen.targets import Target

Report: TypeAlias = dict[str, Any]

CLOSED_LOOP: Final = "closed_loop"
METRICS: Final = ("ttft", "tpot", "itl", "e2el")
OBJECTIVES: Final = ("ttft", "tpot", "e2el")


@dataclass(frozen=True, slots=True)
class Percentile:
    """`needs` samples: with fewer, it would be the largest one, or a guess."""

    name: str
    share: float
    needs: int


PERCENTILES: Final = (Percentile("p90", 0.9, 10), Percentile("p99", 0.99, 100), Percentile("p99.9", 0.999, 1000))


@dataclass(frozen=True, slots=True)
class Plan:
    """What was asked of the run. `arrivals` is `CLOSED_LOOP` where `max_concurrency` is given. `goodput`: the most
    milliseconds by objective; requests due within the first `warm_up_s` are not measured."""

    base_url: str
    arrivals: str
    request_rate: float | None = None
    max_concurrency: int | None = None
    warm_up_s: float = 0.0
    goodput: Mapping[str, float] = field(default_factory=dict)


def parse_goodput(given: Iterable[str]) -> dict[str, float]:
    """Of `e2el:50`: an objective and its milliseconds.

    Raises:
        ConfigurationError: names what was given and what is expected.
    """
    limits: dict[str, float] = {}
    for text in given:
        name, _, value = text.partition(":")
        try:
            limit = float(value)
        except ValueError:
            limit = 0.0
        if name not in OBJECTIVES or not limit > 0:
            raise ConfigurationError(f"--goodput {text!r}, expected one of {', '.join(OBJECTIVES)}, as in e2el:50")
        limits[name] = limit
    return limits


def report(plan: Plan, target: Target, run: LoadRun) -> Report:
    """The whole report of a finished run."""
    began_s = run.start_s + plan.warm_up_s
    measured = [record for record in run.records if record.due_s >= began_s]
    good = [record for record in measured if record.answer is not None]
    duration_s = max((record.end_s for record in measured), default=began_s) - began_s
    made = _asked(plan, target, run, len(measured))
    made |= _throughput(good, measured, duration_s)
    made |= _goodput(plan.goodput, good, measured, duration_s)
    for name in METRICS:
        if values := _samples(name, good):
            made |= _latency(name, values)
    made["too_few_samples"] = [key for key, value in made.items() if value is None and key.endswith("_ms")]
    made |= _rungs(good) | _batches(good) | _concurrency(measured)
    made["send_lateness"] = None if plan.arrivals == CLOSED_LOOP else _lateness(measured)
    made["connections"] = _connections(run.pool)
    made["errors"] = _errors(measured, run.details)
    return made


def _asked(plan: Plan, target: Target, run: LoadRun, num_measured: int) -> Report:
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "backend": target.backend,
        "base_url": plan.base_url,
        "endpoint": target.endpoint,
        "model_id": target.model,
        "arrivals": plan.arrivals,
        "request_rate": plan.request_rate,
        "max_concurrency": plan.max_concurrency,
        "num_prompts": num_measured,
        "distinct_bodies": min(len(target.bodies), num_measured),
        "warm_up_s": plan.warm_up_s,
        "warm_up_requests": len(run.records) - num_measured,
    }


def e2el_ms(record: Record) -> float | None:
    """From due to the last token, or to the whole body where nothing was streamed; None without a good answer."""
    return None if record.answer is None else (record.answer.last_s - record.due_s) * 1e3


def ttft_ms(record: Record) -> float | None:
    if record.answer is None or record.answer.first_s is None:
        return None
    return (record.answer.first_s - record.due_s) * 1e3


def tpot_ms(record: Record) -> float | None:
    """(E2EL - TTFT) / (completion tokens - 1); None of fewer than two tokens."""
    answer = record.answer
    if answer is None or answer.first_s is None or answer.completion_tokens < 2:
        return None
    return (answer.last_s - answer.first_s) * 1e3 / (answer.completion_tokens - 1)


_OF_RECORD: Final = {"ttft": ttft_ms, "tpot": tpot_ms, "e2el": e2el_ms}


def _samples(name: str, good: Sequence[Record]) -> list[float]:
    if name == "itl":
        return [gap_s * 1e3 for record in good if record.answer for gap_s in record.answer.gaps_s]
    return [value for record in good if (value := _OF_RECORD[name](record)) is not None]


def _latency(name: str, values: Sequence[float]) -> Report:
    made: Report = {
        f"mean_{name}_ms": statistics.fmean(values),
        f"median_{name}_ms": statistics.median(values),
        f"std_{name}_ms": statistics.pstdev(values),
    }
    for each in PERCENTILES:
        enough = len(values) >= each.needs
        made[f"{each.name}_{name}_ms"] = percentile(values, each.share) if enough else None
    return made | {f"max_{name}_ms": max(values)}


def _throughput(good: Sequence[Record], measured: Sequence[Record], duration_s: float) -> Report:
    answers = [record.answer for record in good if record.answer is not None]
    prompt = sum(answer.prompt_tokens for answer in answers)
    completion = sum(answer.completion_tokens for answer in answers)
    return {
        "duration": duration_s,
        "completed": len(good),
        "failed": len(measured) - len(good),
        "total_input_tokens": prompt,
        "total_output_tokens": completion,
        "prefix_hit_rate": _prefix_hit_rate(answers),
        "tokens_counted_by": "server" if all(answer.tokens_told for answer in answers) else "chunks",
        "request_throughput": _per_s(len(good), duration_s),
        "output_throughput": _per_s(completion, duration_s),
        "total_token_throughput": _per_s(prompt + completion, duration_s),
    }


def _prefix_hit_rate(answers: Sequence[Answer]) -> float | None:
    """Of the prompt tokens of answers that tell it, the share that the server's prefix cache had."""
    told = [(answer.cached_tokens, answer.prompt_tokens) for answer in answers if answer.cached_tokens is not None]
    prompt = sum(num_prompt for _, num_prompt in told)
    return sum(num_cached for num_cached, _ in told) / prompt if prompt else None


def _goodput(
    limits: Mapping[str, float], good: Sequence[Record], measured: Sequence[Record], duration_s: float
) -> Report:
    """`slo_attainment`: the share of all measured requests, failed ones included, that met every objective."""
    if not limits:
        return {"goodput": {}, "request_goodput": None, "slo_attainment": None}
    met = sum(_meets(record, limits) for record in good)
    attainment = met / len(measured) if measured else None
    return {"goodput": dict(limits), "request_goodput": _per_s(met, duration_s), "slo_attainment": attainment}


def _meets(record: Record, limits: Mapping[str, float]) -> bool:
    """A request without the metric (one token has no TPOT) cannot miss it."""
    return all((value := _OF_RECORD[name](record)) is None or value <= limit for name, limit in limits.items())


def _rungs(good: Sequence[Record]) -> Report:
    """Shares of good answers, by rung, and of the degraded ones by rung and reason; empty where no rung is told."""
    told = [record.answer for record in good if record.answer and record.answer.rung is not None]
    if not told:
        return {"rungs": {}, "degraded_share": None, "degraded": {}}
    by_reason = defaultdict[str, Counter[str]](Counter)
    for answer in told:
        if answer.degraded:
            by_reason[str(answer.rung)][answer.reason or "none given"] += 1
    rungs = Counter(answer.rung for answer in told)
    return {
        "rungs": {rung: count / len(told) for rung, count in rungs.most_common()},
        "degraded_share": sum(answer.degraded for answer in told) / len(told),
        "degraded": {r: {why: n / len(told) for why, n in reasons.items()} for r, reasons in by_reason.items()},
    }


def _batches(good: Sequence[Record]) -> Report:
    """Of answers that tell how many shared their device call."""
    sizes = [record.answer.batch_size for record in good if record.answer and record.answer.batch_size]
    counts = Counter(sizes)
    return {
        "mean_batch_size": statistics.fmean(sizes) if sizes else None,
        "batch_sizes": {str(size): counts[size] for size in sorted(counts)},
    }


def _concurrency(measured: Sequence[Record]) -> Report:
    """Requests in flight, as a request that is due finds them; it is one of them."""
    in_flight = [record.in_flight for record in measured] or [0]
    return {"mean_concurrency": statistics.fmean(in_flight), "max_concurrent_requests": max(in_flight)}


def _lateness(measured: Sequence[Record]) -> Report:
    """Of the generator itself: from due to written, the wait for a free connection included."""
    late_ms = [(record.sent_s - record.due_s) * 1e3 for record in measured if record.sent_s is not None]
    if not late_ms:
        return {"p50_ms": None, "p99_ms": None, "max_ms": None}
    return {"p50_ms": statistics.median(late_ms), "p99_ms": percentile(late_ms, 0.99), "max_ms": max(late_ms)}


def _connections(pool: ConnectionPool) -> Report:
    return {"limit": pool.limit, "peak": pool.peak, "opened": pool.num_opened, "waits": pool.num_waits}


def _errors(measured: Sequence[Record], details: Mapping[str, str]) -> Report:
    """By kind: how many, how soon they were known (a refusal should be quick), and the first one in words."""
    taken = defaultdict[str, list[float]](list)
    for record in measured:
        if record.failure is not None:
            taken[record.failure].append((record.end_s - record.due_s) * 1e3)
    return {
        kind: {"count": len(ms), **_latency("error", ms), "first": details[kind]} for kind, ms in sorted(taken.items())
    }


def _per_s(count: float, duration_s: float) -> float:
    return count / duration_s if duration_s > 0 else 0.0
