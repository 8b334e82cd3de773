"""Does the scheduler keep its promises? In virtual time, on the step-time model; its own cost is measured.

`--only NAME` runs one part: cost, pressure, pools, batching, long_prompt, fairness, step_time.
"""

from __future__ import annotations

from collections.abc import Callable

from benchmarks.report import conclude, options, show
from benchmarks.scheduling import batching, fairness, long_prompt, own_cost, pools, pressure, step_time
from benchmarks.scheduling.part import Part
from headrace.machine import machine

PARTS: dict[str, Callable[..., Part]] = {
    "cost": own_cost.run,
    "pressure": pressure.run,
    "pools": pools.run,
    "batching": batching.run,
    "long_prompt": long_prompt.run,
    "fairness": fairness.run,
    "step_time": step_time.run,
}


def main() -> None:
    args = options(__doc__ or "", parts=tuple(PARTS))
    print(machine() + (": quick, smaller runs" if args.quick else ""))
    rows, headline = [], dict[str, float]()
    for name in args.only or PARTS:
        part = PARTS[name](quick=args.quick)
        if part.rows:
            show(part.title, part.rows)
        else:
            print(part.title)
        rows += [{"part": name, **row} for row in part.rows]
        headline |= part.headline
    conclude(rows, headline, args.json)


if __name__ == "__main__":
    main()
