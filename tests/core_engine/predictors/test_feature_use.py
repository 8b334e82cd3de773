"""States become values or reasons exactly as declared; what is reported is what was found."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from core_engine.contracts import FeatureRow, FeatureState, FeatureValue, Reason
from core_engine.predictors.declaration import FeatureUse, OnState
from core_engine.predictors.feature_use import judge

states = st.sampled_from(FeatureState)
actions = st.sampled_from(OnState)
RULES = {
    FeatureState.MISSING: "on_missing",
    FeatureState.STALE: "on_stale",
    FeatureState.NULL: "on_null",
}


@st.composite
def rows(draw: st.DrawFn) -> tuple[list[FeatureUse], FeatureRow]:
    uses, values = [], {}
    for index in range(draw(st.integers(0, 5))):
        ref = f"view.f{index}"
        uses.append(
            FeatureUse(
                ref=ref, on_missing=draw(actions), on_stale=draw(actions), on_null=draw(actions), default=float(index)
            )
        )
        state = draw(states)
        has_value = state not in (FeatureState.MISSING, FeatureState.NULL)
        values[ref] = FeatureValue(-1.0 if has_value else None, state, 5.0)
    return uses, FeatureRow(values)


@given(rows())
def test_every_feature_follows_its_own_rule(drawn: tuple[list[FeatureUse], FeatureRow]) -> None:
    uses, row = drawn
    judgement = judge(uses, row)
    for use in uses:
        found = row.values[use.ref]
        action = getattr(use, RULES[found.state]) if found.state in RULES else OnState.USE
        assert judgement.states[use.ref] is found.state
        assert judgement.values[use.ref] == (use.default if action is OnState.DEFAULT else found.value)
        assert (use.ref in (judgement.skip_model or "")) == (action is OnState.NEXT_RUNG)
        assert (use.ref in (judgement.refuse or "")) == (action is OnState.REFUSE)
    assert judgement.reason is Reason.FEATURE_STATE


def test_a_reference_that_the_row_lacks_is_missing() -> None:
    judgement = judge([FeatureUse(ref="a.b", on_missing=OnState.NEXT_RUNG)], FeatureRow({}))
    assert judgement.states == {"a.b": FeatureState.MISSING}
    assert judgement.ages_s == {"a.b": None}
    assert judgement.skip_model == "a.b is missing"


def test_a_lost_store_is_told_apart_from_a_missing_value() -> None:
    judgement = judge([FeatureUse(ref="a.b", on_missing=OnState.REFUSE)], FeatureRow({}, failure="deadline"))
    assert judgement.reason is Reason.FEATURES_UNAVAILABLE
    assert judgement.refuse == "a.b is missing (deadline)"
