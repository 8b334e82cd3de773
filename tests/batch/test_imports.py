"""What the batch door imports must bring neither torch nor another door with it."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = ("torch", "transformers", "triton", "fastapi", "online", "streaming")


@pytest.mark.parametrize("module", ["batch.door", "headrace.batch"])
def test_imports_without_torch(module: str) -> None:
    heavy = HEAVY[:3] if module.startswith("headrace") else HEAVY
    code = f"import sys, {module}; sys.exit(str(set({heavy!r}) & set(sys.modules) or '') or 0)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
