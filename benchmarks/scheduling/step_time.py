"""How far off are the predictions that all the rest stands on? The real model on this CPU, on held-out steps."""

from __future__ import annotations

import os

import torch

from benchmarks.scheduling.part import Part
from benchmarks.step_time import judge, row_of

DTYPE = "bfloat16"


def run(*, quick: bool) -> Part:
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    num_steps = 12 if quick else 200  # a dozen says little of a p95: the full run is what counts
    judged = judge(DTYPE, num_steps)
    title = f"Step-time model, SmolLM2-135M on this CPU: {num_steps} random steps fitted, {num_steps // 2} held out"
    return Part(title, [row_of(DTYPE, judged)], {"steptime_p95_error": judged.calibrated.p95})
