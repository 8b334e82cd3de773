"""The spin limit is set before torch loads its OpenMP, and never over what the user has said."""

from __future__ import annotations

import pytest

from core_engine.llm.openmp import SPINS, spin_briefly


def test_the_limit_is_set_where_nothing_was_said() -> None:
    environ: dict[str, str] = {}
    spin_briefly(environ)
    assert environ == {"GOMP_SPINCOUNT": SPINS}


@pytest.mark.parametrize("said", [{"GOMP_SPINCOUNT": "7"}, {"OMP_WAIT_POLICY": "active"}])
def test_what_the_user_said_stands(said: dict[str, str]) -> None:
    environ = dict(said)
    spin_briefly(environ)
    assert environ == said
