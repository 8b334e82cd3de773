from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.parametrize("module", ["virtual_engine", "trace", "workload", "report", "plot", "presets"])
def test_the_simulator_imports_without_torch_and_without_matplotlib(module: str) -> None:
    code = "import sys; sys.modules['torch'] = sys.modules['matplotlib'] = None\n"
    code += f"import core_engine.simulation.{module}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
