"""The machine in words, as it stands beside every figure that was measured on it."""

from __future__ import annotations

import os
import platform
from pathlib import Path

import torch


def machine() -> str:
    """The processor, the threads in use and the torch build."""
    model = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        names = [line.partition(":")[2].strip() for line in cpuinfo.read_text().splitlines() if "model name" in line]
        model = names[0] if names else model
    return (
        f"{model}, {len(os.sched_getaffinity(0))} cores, {torch.get_num_threads()} threads, torch {torch.__version__}"
    )
