"""How long torch's OpenMP threads spin at a barrier before they sleep. To be said before torch is imported.

GNU OpenMP spins for milliseconds by default. On a machine whose cores have other work (a door, a client, a store) a
spinning thread holds the core that its partner waits for: one bf16 decode step of SmolLM2-135M on two busy cores took
155 to 635 ms at batch 1 beside one or two busy processes, 49 to 85 ms with a limit of 500 to 2,000 spins, and on idle
cores 29.5 ms against 27.6 without one (2026-11-30, six runs each).
"""

from __future__ import annotations

import os
from collections.abc import MutableMapping

SPINS = "2000"


def spin_briefly(environ: MutableMapping[str, str] = os.environ) -> None:
    """Limit the spinning of OpenMP libraries loaded from now on, unless the user has set it."""
    if not {"GOMP_SPINCOUNT", "OMP_WAIT_POLICY"} & set(environ):
        environ["GOMP_SPINCOUNT"] = SPINS
