"""The whole step of a decoder as one C++ call. `build` builds and loads it, for a level of `isa`, with a `compiler`.

Importing this package imports no torch.
"""

from __future__ import annotations


class KernelUnavailable(Exception):
    """The C++ kernels cannot be used here; the message is one sentence that says why. The reference path remains."""
