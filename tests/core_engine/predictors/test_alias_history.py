"""What a rollback goes back to, and what it says where it does not."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core_engine.errors import ConfigurationError
from core_engine.predictors.alias_history import AliasMove, Cause, version_before

AT = datetime(2026, 3, 1, 9, 30, tzinfo=UTC)


def moves(*versions: int | None, last: Cause = Cause.SET) -> list[AliasMove]:
    causes = [*(Cause.SET for _ in versions[1:]), last]
    return [AliasMove("live", version, None, cause, AT) for version, cause in zip(versions, causes, strict=True)]


@given(earlier=st.lists(st.integers(1, 4), max_size=6), before=st.integers(1, 4), now=st.integers(1, 4))
def test_it_goes_back_to_the_last_other_version(earlier: list[int], before: int, now: int) -> None:
    if before != now:
        assert version_before("delay", moves(*earlier, before, now)) == before
        assert version_before("delay", moves(*earlier, before, now, now)) == before


def test_what_was_taken_away_goes_back_to_what_it_was() -> None:
    assert version_before("delay", moves(1, 2, None, last=Cause.REMOVED)) == 2


def test_a_version_that_followed_a_rollback_goes_back_to_where_that_led() -> None:
    assert version_before("delay", [*moves(1, 2, 1, last=Cause.ROLLBACK), *moves(3)]) == 1


@pytest.mark.parametrize(
    ("told", "words"),
    [
        ([], "has never been live"),
        (moves(1), "has only ever been version 1"),
        (moves(2, 2), "has only ever been version 2"),
    ],
)
def test_where_there_is_nothing_before_it_says_so(told: list[AliasMove], words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        version_before("delay", told)


def test_a_rollback_of_a_rollback_is_explained() -> None:
    rolled_back = moves(1, 2, 3, 2, last=Cause.ROLLBACK)
    with pytest.raises(ConfigurationError) as caught:
        version_before("delay", rolled_back)
    assert str(caught.value) == (
        "live of predictor 'delay' was rolled back already, from version 3 to 2 at 2026-03-01 09:30:00 UTC; "
        "`headrace predictors alias delay live 3` undoes that, and `headrace predictors alias delay live 1` goes "
        "further back"
    )


def test_without_an_earlier_version_nothing_further_back_is_offered() -> None:
    with pytest.raises(ConfigurationError, match=r"live 2` undoes that$"):
        version_before("delay", moves(1, 2, 1, last=Cause.ROLLBACK))
