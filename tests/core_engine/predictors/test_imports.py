"""What a door imports must not bring torch with it."""

from __future__ import annotations

import subprocess
import sys

import pytest

MODULES = [
    "core_engine.predictors.predict",
    "core_engine.predictors.catalogue",
    "core_engine.costs.spool",
    "online.app",
    "headrace.door",
]


@pytest.mark.parametrize("module", MODULES)
def test_imports_without_torch(module: str) -> None:
    code = f"import sys, {module}; sys.exit(bool({{'torch', 'transformers', 'triton'}} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_door_imports_no_other_door() -> None:
    code = "import sys, online.app; sys.exit(any(m.split('.')[0] in ('batch', 'streaming') for m in sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
