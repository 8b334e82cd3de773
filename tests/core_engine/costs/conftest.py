from __future__ import annotations

from collections.abc import Iterator

import pytest
from sqlalchemy import Engine

from tests.core_engine.costs.ledger import ledger


@pytest.fixture(scope="module")
def database() -> Iterator[Engine]:
    """One ledger for a module: compiled statements stay with it. `load` empties it first."""
    with ledger() as database:
        yield database
