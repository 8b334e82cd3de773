"""What must import without torch does."""

from __future__ import annotations

import subprocess
import sys

import pytest

LIGHT = [
    "core_engine.contracts",
    "core_engine.readers",
    "core_engine.settings",
    "core_engine.errors",
    "core_engine.metrics",
    "core_engine.tracing",
    "core_engine.pools.supervisor",
    "core_engine.llm.client",
    "core_engine.llm.messages",
    "core_engine.llm.totals",
    "core_engine.llm.translation",
    "core_engine.llm.mailbox",
    "core_engine.llm.scheduler",
    "core_engine.llm.block_pool",
    "core_engine.llm.step_time",
    "core_engine.llm.step_time_fit",
    "core_engine.llm.admission",
    "core_engine.llm.pool_load",
    "core_engine.llm.text",
    "dags",
    "batch",
    "streaming",
]


@pytest.mark.parametrize("module", LIGHT)
def test_imports_without_torch(module: str) -> None:
    code = f"import sys; sys.modules['torch'] = None; import {module}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
