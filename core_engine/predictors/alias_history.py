"""The moves of a predictor's aliases, and what a rollback goes back to. Pure; `registry` stores and reads them."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from core_engine.errors import ConfigurationError


class Cause(enum.StrEnum):
    SET = "set"
    ROLLBACK = "rollback"
    REMOVED = "removed"


@dataclass(frozen=True, slots=True)
class AliasMove:
    """One move. `version` is None where the alias was taken away, `percent` where it is no canary."""

    alias: str
    version: int | None
    percent: float | None
    cause: Cause
    moved_at: datetime


def version_before(name: str, moves: Sequence[AliasMove]) -> int:
    """The version that `live` goes back to: of its `moves`, oldest first, the last to another version than now's.

    A rollback right after a rollback is refused: two people at one incident would go back twice, and nobody can tell
    whether "back" means forward again or one further.

    Raises:
        ConfigurationError: live was rolled back already, or has never pointed at another version; says what to do.
    """
    if not moves:
        raise ConfigurationError(f"predictor {name!r} has never been live: there is nothing to go back to")
    now = moves[-1]
    if now.cause is Cause.ROLLBACK:
        raise ConfigurationError(_again(name, now, moves))
    others = [move.version for move in moves if move.version is not None and move.version != now.version]
    if not others:
        raise ConfigurationError(f"live of predictor {name!r} has only ever been version {now.version}")
    return others[-1]


def _again(name: str, now: AliasMove, moves: Sequence[AliasMove]) -> str:
    """What a rollback of a rollback is told: how to go forward again, and how to go further back."""
    left = moves[-2].version
    earlier = [move.version for move in moves[:-2] if move.version not in (None, now.version, left)]
    further = f", and `headrace predictors alias {name} live {earlier[-1]}` goes further back" if earlier else ""
    return (
        f"live of predictor {name!r} was rolled back already, from version {left} to {now.version} at "
        f"{now.moved_at:%Y-%m-%d %H:%M:%S} UTC; `headrace predictors alias {name} live {left}` undoes that{further}"
    )
