"""The ledger and the engine's meter are read by processes that have no torch."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.parametrize("module", ["spool", "meter", "loader", "prices", "quantities", "report", "diagnosis"])
def test_imports_without_torch(module: str) -> None:
    code = f"import sys, core_engine.costs.{module}; sys.exit(bool({{'torch', 'transformers'}} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
