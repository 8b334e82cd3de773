"""What the doors import must not drag torch in."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.parametrize("module", ["artifact", "encoding", "student", "prior"])
def test_imports_without_torch(module: str) -> None:
    code = f"import sys, core_engine.scoring.{module}; sys.exit('torch' in sys.modules or 'pyarrow' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
