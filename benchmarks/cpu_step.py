"""The engine's step on this CPU: where its time goes beside the floor, prompts, long contexts, neighbours, loading.

Groups run alone with `--only NAME`. Everything goes through the engine's own scheduler, sampler and commit; only
`load` starts a process. Wall-clock figures: they mean something on a quiet machine.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

import torch

from benchmarks.cpu.context import capacity_rows, context_rows
from benchmarks.cpu.load import CONCURRENCY, load_rows
from benchmarks.cpu.neighbour import neighbour_rows
from benchmarks.cpu.parts import decode_rows, prefill_rows, torch_rows
from benchmarks.report import Row, conclude, options, show
from core_engine.llm.openmp import spin_briefly
from headrace.machine import machine

GROUPS = ("parts", "prefill", "context", "capacity", "neighbour", "load")
QUICK = ("parts", "capacity", "neighbour", "load")


def matching(rows: Iterable[Row], **wanted: object) -> Row:
    """The first row with these values."""
    return [row for row in rows if all(row[name] == value for name, value in wanted.items())][-1]


def parts(*, quick: bool) -> tuple[list[Row], dict[str, float]]:
    rows = decode_rows(quick=quick)
    show("Decode steps, ms (part / floor); other, sampler and Python have no floor", rows)
    batches = {b: matching(rows, weights="int8", kv="model", batch=b) for b in (1, 8, 32)}
    steps = {f"step_ms_b{batch}": row["step ms"] for batch, row in batches.items()}
    return rows, steps | {f"floor_ratio_b{batch}": batches[batch]["x floor"] for batch in (1, 32)}


def prefill(*, quick: bool) -> tuple[list[Row], dict[str, float]]:
    rows = prefill_rows(quick=quick)
    show("Prompts in chunks of 512, batch 1, ms (part / floor)", rows)
    against = torch_rows(quick=quick)
    show("Products of all layers, int8, against torch._int_mm", against)
    speeds = {n: matching(rows, weights="int8", tokens=n)["tok/s"] for n in (512, 2048)}
    return rows + against, {f"prefill{n}_tok_s": speed for n, speed in speeds.items()}


def context(*, quick: bool) -> tuple[list[Row], dict[str, float]]:
    rows = context_rows(quick=quick)
    show("Long contexts, int8 weights, batch 1", rows)
    return rows, {}


def capacity(*, quick: bool) -> tuple[list[Row], dict[str, float]]:
    rows = capacity_rows()
    show("What the KV cache holds by default", rows)
    return rows, {}


def neighbour(*, quick: bool) -> tuple[list[Row], dict[str, float]]:
    rows = neighbour_rows(quick=quick)
    show("Decode steps beside busy processes", rows)
    return rows, {"neighbour_ratio": matching(rows, step="C++ int8", batch=1, competitors=1)["x quiet"]}


def load(*, quick: bool) -> tuple[list[Row], dict[str, float]]:
    rows = load_rows(quick=quick)
    show("From a process's start to its first token, warm disk, s (wall / CPU)", rows)
    first = matching(rows, weights="int8")
    return rows, {"load_s": first["first token s"], "rss_mb": first[f"RSS MB at concurrency {CONCURRENCY}"]}


def main() -> None:
    spin_briefly()
    args = options(__doc__ or "", GROUPS)
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    run = {each.__name__: each for each in (parts, prefill, context, capacity, neighbour, load)}
    print(f"Step of the engine, SmolLM2-135M-Instruct\n{machine()}")
    rows: list[Row] = []
    headline: dict[str, float] = {}
    for name in args.only or (QUICK if args.quick else GROUPS):
        found, figures = run[name](quick=args.quick)
        rows += [{"group": name} | row for row in found]
        headline |= figures
    conclude(rows, headline, args.json)


if __name__ == "__main__":
    main()
