"""The doors import the feature store: it must cost them no torch."""

from __future__ import annotations

import pkgutil
import subprocess
import sys

import featurestore


def test_no_module_of_the_feature_store_imports_torch() -> None:
    names = [module.name for module in pkgutil.walk_packages(featurestore.__path__, "featurestore.")]
    assert "featurestore.online.store" in names
    script = (
        f"import sys, {', '.join(names)}; print([n for n in ('torch', 'transformers', 'triton') if n in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True, text=True)
    assert done.stdout.strip() == "[]"
