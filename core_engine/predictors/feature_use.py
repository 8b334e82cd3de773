"""What a predictor makes of the features it was given: its declaration applied to one row. Pure.

The states that are reported stay those that the read found; only what the columns see changes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from core_engine.contracts import FeatureRow, FeatureState, FeatureValue, Reason
from core_engine.predictors.declaration import FeatureUse, OnState

ABSENT = FeatureValue(None, FeatureState.MISSING)


@dataclass(frozen=True, slots=True)
class Judgement:
    """`values` is what the columns see, by reference. `skip_model` and `refuse` say why a rung may not use them."""

    values: Mapping[str, Any]
    states: Mapping[str, FeatureState]
    ages_s: Mapping[str, float | None]
    reason: Reason
    skip_model: str | None = None
    refuse: str | None = None


def judge(uses: Sequence[FeatureUse], row: FeatureRow) -> Judgement:
    """Apply each `FeatureUse` to what was read. A reference that the row lacks is missing."""
    found = {use.ref: row.values.get(use.ref, ABSENT) for use in uses}
    actions = {use.ref: _action(use, found[use.ref].state) for use in uses}
    return Judgement(
        values={u.ref: u.default if actions[u.ref] is OnState.DEFAULT else found[u.ref].value for u in uses},
        states={ref: value.state for ref, value in found.items()},
        ages_s={ref: value.age_s for ref, value in found.items()},
        reason=Reason.FEATURES_UNAVAILABLE if row.failure else Reason.FEATURE_STATE,
        skip_model=_why(OnState.NEXT_RUNG, actions, found, row.failure),
        refuse=_why(OnState.REFUSE, actions, found, row.failure),
    )


def _action(use: FeatureUse, state: FeatureState) -> OnState:
    match state:
        case FeatureState.MISSING:
            return use.on_missing
        case FeatureState.STALE:
            return use.on_stale
        case FeatureState.NULL:
            return use.on_null
        case _:
            return OnState.USE


def _why(
    wanted: OnState, actions: Mapping[str, OnState], found: Mapping[str, FeatureValue], failure: str | None
) -> str | None:
    refs = [f"{ref} is {found[ref].state}" for ref, action in actions.items() if action is wanted]
    if not refs:
        return None
    return ", ".join(refs) + (f" ({failure})" if failure else "")
