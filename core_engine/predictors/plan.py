"""Freshness decides the path: which door a predictor's answers come from, by its declaration, and why in a sentence.

`headrace plan` calls this. It runs nothing and looks at no load; the same declaration gives the same plan. The rule,
first match:

1. A model that writes and has no prompt for rows can be asked in conversations only: online.
2. An answer may be as old as the nightly period, and a key is declared under which one stays stored that long: batch,
   computed ahead and looked up.
3. An answer may have some age, but less than a night's, and the model scores: stream. It must reflect an event as it
   happens, and `freshness_s` is how long after the event it may come.
4. Everything else must be computed from the request itself: online.

Beside that: whatever is declared as precomputed needs a batch job to store it, and a batch predictor whose ladder looks
up and then asks the model also answers online. A feature that a stream feeds does not make a predictor a stream one: it
is read as it stands when the row is scored, which the sentence says.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass

from core_engine.contracts import Path, Rung
from core_engine.predictors.declaration import LMGenerate, Objective, Predictor

NIGHT_S = 24 * 3600.0  # from one nightly job to the next
UNITS = ((3600.0, "h"), (60.0, "min"), (1.0, "s"), (1e-3, "ms"))


@dataclass(frozen=True, slots=True)
class Plan:
    """`mode` is the door that the declaration asks for, `also` what it needs beside it, `why` one sentence on both."""

    mode: Path
    also: tuple[Path, ...]
    why: str


def plan(predictor: Predictor, streamed: Collection[str] = ()) -> Plan:
    """The plan of a sound declaration. `streamed` names the feature views that a stream feeds: a predictor does not
    know which of its views are."""
    mode, reason = _mode(predictor)
    also, beside = _also(predictor, mode)
    fed = sorted({re.split("[.@]", use.ref)[0] for use in predictor.features} & set(streamed))
    read = [f"reading {', '.join(fed)} as the stream has left it by then"] if fed else []
    return Plan(mode, also, f"{'; '.join([', '.join([reason, *read]), *beside])}.")


def quoted(predictor: Predictor) -> str:
    """By which figures the predictor is judged, as its objective says; each with its batch size and concurrency."""
    if predictor.objective is Objective.LATENCY:
        return f"latency: share within {duration(predictor.budget_ms / 1e3)}, p50, p99"
    return "throughput: rows/s, device seconds per 1,000 rows"


def duration(seconds: float) -> str:
    """A span in the largest unit that it fills twice, or exactly: 90,000 s are 25 h, and 90 s are 90 s."""
    size, unit = next((u for u in UNITS if seconds >= 2 * u[0] or seconds == u[0]), UNITS[-1])
    return f"{seconds / size:g} {unit}"


def _mode(p: Predictor) -> tuple[Path, str]:
    age, is_text = duration(p.freshness_s), isinstance(p.model, LMGenerate)
    if isinstance(p.model, LMGenerate) and not p.model.prompt:
        return Path.ONLINE, f"It is asked in conversations only, so it is written from their messages {_how(p)}"
    if p.freshness_s >= NIGHT_S:
        if p.precomputed is not None and p.precomputed.max_age_s >= NIGHT_S:
            key = ", ".join(p.precomputed.key)
            return Path.BATCH, f"An answer may be {age} old, so a nightly job computes it, to be looked up by {key}"
        lack = "no key is declared under which one stays stored for a night"
        return Path.ONLINE, f"An answer may be {age} old, but {lack}, so it is computed when asked {_how(p)}"
    if p.freshness_s > 0 and not is_text:
        return Path.STREAM, f"An answer must reflect an event within {age} of it, so each event is scored as it comes"
    if p.freshness_s > 0:
        lack = "no stream writes texts"
        return Path.ONLINE, f"An answer may be {age} old, but {lack}, so it is written when asked {_how(p)}"
    return (
        Path.ONLINE,
        f"An answer may not be older than its question, so it is computed from the request itself {_how(p)}",
    )


def _how(p: Predictor) -> str:
    pool = "" if p.objective is Objective.LATENCY else " in the bulk pool"
    return f"within {duration(p.budget_ms / 1e3)}{pool}"


def _also(p: Predictor, mode: Path) -> tuple[tuple[Path, ...], list[str]]:
    is_rung = Rung.PRECOMPUTED in p.ladder
    if p.precomputed is None:
        return (), []
    if mode is not Path.BATCH:
        use = "its precomputed rung" if is_rung else "look-up"
        return (Path.BATCH,), [f"batch beside it, for {use}: answers of at most {duration(p.precomputed.max_age_s)}"]
    if is_rung and Rung.MODEL in p.ladder:
        return (Path.ONLINE,), ["online beside it, where the ladder also asks the model"]
    return (), []
