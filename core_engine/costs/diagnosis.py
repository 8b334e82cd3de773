"""Why the slow requests are slow: what they spend more time on than the others, and what would help.

Requests are compared with those of their own predictor and path only. It reads request times and nothing else: what
the facts do not tell is a note, not a guess.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime

from core_engine.costs.facts import Fact
from core_engine.costs.levers import Figures, lever_for
from core_engine.costs.quantities import UNNAMED
from core_engine.costs.request_times import Joined, RequestTime, Stage, join
from core_engine.errors import HeadraceError

WORTH_NAMING = 0.1  # share of the slow requests' time, or of what they take longer than the others
ENOUGH_FOR_P99 = 100


class NoRecords(HeadraceError):
    """There is no request to say anything about."""

    code = "no_records"


@dataclass(frozen=True, slots=True)
class Finding:
    """One stage: its mean in the slow requests and in the others (None without others), and its share of the former."""

    stage: Stage
    slow_ms: float
    others_ms: float | None
    share: float
    lever: str
    figures: Figures


@dataclass(frozen=True, slots=True)
class GroupDiagnosis:
    """The requests of one predictor on one path. `slow` of them are the slowest, `slower_than_ms` the fastest of these;
    `shares` of their time by stage add up to 1. `late` were not delivered in time. `findings`: the greatest first."""

    predictor: str
    path: str
    requests: int
    late: int
    degraded: int
    p50_ms: float
    p99_ms: float | None
    slow: int
    slower_than_ms: float
    shares: dict[Stage, float]
    findings: tuple[Finding, ...]


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """`groups`: those with the most time in slow requests first. `notes`: what the records cannot tell."""

    from_at: datetime
    to_at: datetime
    requests: int
    groups: tuple[GroupDiagnosis, ...]
    notes: tuple[str, ...]


def diagnose(facts: Iterable[Fact], slow_share: float = 0.1) -> Diagnosis:
    """`slow_share`: the slowest share of each group's requests, at least one of them, are its slow ones.

    Raises:
        NoRecords: no caller has told of a request.
    """
    joined = join(facts)
    if not joined.requests:
        raise NoRecords("no caller has told of a request; ask for something, or look further back")
    groups = defaultdict[tuple[str, str], list[RequestTime]](list)
    for request in joined.requests:
        groups[request.caller.predictor or UNNAMED, str(request.caller.path)].append(request)
    diagnosed = [_group(name, path, requests, slow_share) for (name, path), requests in groups.items()]
    return Diagnosis(
        from_at=min(request.caller.arrived_at for request in joined.requests),
        to_at=max(request.caller.answered_at for request in joined.requests),
        requests=len(joined.requests),
        groups=tuple(sorted(diagnosed, key=_slow_time, reverse=True)),
        notes=tuple(_notes(joined)),
    )


def _group(predictor: str, path: str, requests: Sequence[RequestTime], slow_share: float) -> GroupDiagnosis:
    ranked = sorted(requests, key=lambda request: request.total_s)
    num_slow = max(1, math.ceil(slow_share * len(ranked)))
    others, slow = ranked[:-num_slow], ranked[-num_slow:]
    slow_s = sum(request.total_s for request in slow)
    spent = {stage: _mean_s(slow, stage) * num_slow for stage in Stage}
    return GroupDiagnosis(
        predictor=predictor,
        path=path,
        requests=len(ranked),
        late=sum(not request.caller.delivered_in_time for request in ranked),
        degraded=sum(request.caller.reason is not None for request in ranked),
        p50_ms=_ranked_ms(ranked, 0.5),
        p99_ms=_ranked_ms(ranked, 0.99) if len(ranked) >= ENOUGH_FOR_P99 else None,
        slow=num_slow,
        slower_than_ms=slow[0].total_s * 1e3,
        shares={stage: value / slow_s for stage, value in spent.items() if value} if slow_s else {},
        findings=tuple(_findings(slow, others)),
    )


def _findings(slow: Sequence[RequestTime], others: Sequence[RequestTime]) -> Iterator[Finding]:
    """By how much longer a stage takes in the slow requests; without others, by how long it takes."""
    slow_s = {stage: _mean_s(slow, stage) for stage in Stage}
    more_s = {stage: taken_s - _mean_s(others, stage) for stage, taken_s in slow_s.items()}
    total_s, total_more_s = sum(slow_s.values()), sum(max(0.0, more) for more in more_s.values())
    for stage in sorted(Stage, key=lambda stage: more_s[stage], reverse=True):
        is_large = slow_s[stage] > WORTH_NAMING * total_s
        if slow_s[stage] > 0 and (is_large or more_s[stage] > WORTH_NAMING * total_more_s):
            lever, figures = lever_for(stage, slow, others)
            others_ms = _mean_s(others, stage) * 1e3 if others else None
            yield Finding(stage, slow_s[stage] * 1e3, others_ms, slow_s[stage] / total_s, lever, figures)


def _notes(joined: Joined) -> Iterator[str]:
    requests = joined.requests
    if unknown := sum(Stage.UNKNOWN in request.stages for request in requests):
        yield f"{unknown} of {len(requests)} requests have time that no fact splits: the engine's is not there (yet)"
    if overlaps := sum(request.overlaps for request in requests):
        yield f"{overlaps} requests had stages side by side; their shares are in proportion"
    if joined.without_caller:
        yield f"{joined.without_caller} attempts are known to the engine only: their door has not told of them (yet)"
    yield "not in any record: the way to the door and back, and requests that a door refused before it had read them"


def _mean_s(requests: Sequence[RequestTime], stage: Stage) -> float:
    return sum(request.stages.get(stage, 0.0) for request in requests) / len(requests) if requests else 0.0


def _ranked_ms(ranked: Sequence[RequestTime], share: float) -> float:
    """Nearest rank, in milliseconds."""
    return ranked[math.ceil(share * len(ranked)) - 1].total_s * 1e3


def _slow_time(group: GroupDiagnosis) -> float:
    return sum(finding.slow_ms for finding in group.findings) * group.slow
