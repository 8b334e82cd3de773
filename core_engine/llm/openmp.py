"""How long torch's OpenMP threads spin at a barrier before they sleep. To be said before torch is imported.

GNU OpenMP spins for milliseconds by default. On a machine whose cores have other work (a door, a client, a store) a
spinning thread holds the core that its partner waits for: one bf16 decode step of SmolLM2-135M on two busy cores took
635 ms at batch 1, and 28 ms with the limit below (2026-11-30; batch 28: 243 and 67 ms).
"""

from __future__ import annotations

import os
from collections.abc import MutableMapping

SPINS = "10000"  # about 10 us


def spin_briefly(environ: MutableMapping[str, str] = os.environ) -> None:
    """Limit the spinning of OpenMP libraries loaded from now on, unless the user has set it."""
    if not {"GOMP_SPINCOUNT", "OMP_WAIT_POLICY"} & set(environ):
        environ["GOMP_SPINCOUNT"] = SPINS
