"""Memory in huge pages, where the system has them, for what every step reads: weights and KV.

A step over 135 MB of int8 weights touches 34,000 pages of 4 KiB and 67 of 2 MiB.
"""

from __future__ import annotations

import ctypes
import mmap
import threading

import torch

HUGE_PAGE = 2 << 20
LINE = 64  # bytes of a cache line
REGION = 32 << 20


def zeroed(num_bytes: int) -> torch.Tensor:
    """uint8 [num_bytes] of zeros, in whole huge pages; like any fresh memory it is only taken when it is written."""
    pages = mmap.mmap(-1, num_bytes + HUGE_PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        pages.madvise(mmap.MADV_HUGEPAGE)
    memory = torch.frombuffer(pages, dtype=torch.uint8)  # holds the mapping
    start = -memory.data_ptr() % HUGE_PAGE
    return memory[start : start + num_bytes]


def return_freed() -> None:
    """Give memory that is free on the heap back to the system, where the C library (glibc) can be told to.

    After a model of 135M parameters was made bfloat16 from a GGUF, it kept 320 MB.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


class Arena:
    """Gives out pieces that begin with a cache line and live as long as anything in their region. For any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._region = torch.empty(0, dtype=torch.uint8)
        self._used = 0

    def take(self, num_bytes: int) -> torch.Tensor:
        """uint8 [num_bytes] of zeros."""
        with self._lock:
            if self._used + num_bytes > len(self._region):
                self._region, self._used = zeroed(max(REGION, num_bytes)), 0
            start = self._used
            self._used += -(-num_bytes // LINE) * LINE
            return self._region[start : start + num_bytes]
