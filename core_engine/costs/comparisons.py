"""How a shadow version differs from live, from the ledger: every worker of every door wrote its part into a spool."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from typing import Any

from sqlalchemy import Connection, case, func, select

from core_engine.contracts import Path, Rung
from core_engine.costs.tables import LedgerAttempt, LedgerComparison

EDGES = (-0.2, -0.1, -0.05, -0.02, -0.01, -0.001, 0.001, 0.01, 0.02, 0.05, 0.1, 0.2)  # of score differences


@dataclass(frozen=True, slots=True)
class Compared:
    """All requests that both versions' models scored. Differences are the shadow's score less live's.

    `disagreements` are requests that the two decide differently, of the `judged` ones: where both declare a threshold.
    `histogram` counts differences below each of `EDGES` and not below the one before; the last those from it on.
    `live_answers` are those of live's model from the first comparison to the last: what was not compared of them was
    dropped (`headrace_shadow_requests` says why) or not scored.
    """

    predictor: str
    version: int
    shadow_version: int
    from_at: datetime
    to_at: datetime
    count: int
    mean_difference: float
    mean_absolute_difference: float
    judged: int
    disagreements: int
    histogram: tuple[int, ...]
    live_answers: int


def compared(connection: Connection, predictor: str) -> list[Compared]:
    """Every pair of versions of `predictor` that was compared, the latest first; load the spools before."""
    c = LedgerComparison
    below = [func.sum(case((c.difference < edge, 1), else_=0)) for edge in EDGES]
    columns = (
        c.version,
        c.shadow_version,
        func.min(c.compared_at),
        func.max(c.compared_at),
        func.count(),
        func.avg(c.difference),
        func.avg(func.abs(c.difference)),
        func.count(c.disagrees),
        func.sum(case((c.disagrees.is_(True), 1), else_=0)),
    )
    asked = select(*columns, *below).where(c.predictor == predictor).group_by(c.version, c.shadow_version)
    rows = connection.execute(asked.order_by(func.max(c.compared_at).desc())).all()
    return [_compared(connection, predictor, row) for row in rows]


def _compared(connection: Connection, predictor: str, row: Sequence[Any]) -> Compared:
    version, shadow_version, from_at, to_at, count, mean, absolute, judged, disagreements, *below = row
    a = LedgerAttempt
    answered = select(func.count()).where(
        a.predictor == predictor,
        a.version == version,
        a.path == Path.ONLINE.value,
        a.rung == Rung.MODEL.value,
        a.answered_at.between(from_at, to_at),
    )
    return Compared(
        predictor=predictor,
        version=version,
        shadow_version=shadow_version,
        from_at=from_at,
        to_at=to_at,
        count=count,
        mean_difference=mean,
        mean_absolute_difference=absolute,
        judged=judged,
        disagreements=disagreements,
        histogram=tuple(upper - lower for lower, upper in pairwise((0, *below, count))),
        live_answers=connection.scalar(answered) or 0,
    )
