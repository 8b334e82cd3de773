"""The feature store: reading online, joining history point in time, updating windows; each against its peers.

`--install` makes Feast's environment in the folder HEADRACE_BENCH_PEERS; without it Feast and pandas are left out.
`--only NAME` runs one part: online, join, windows.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final, TypeAlias

from benchmarks.comparison.installation import PeerFailed
from benchmarks.features import feast_peer
from benchmarks.report import Row, conclude, show
from headrace.machine import machine

Measure: TypeAlias = Callable[[bool], tuple[list[Row], dict[str, float]]]

PARTS: Final = {
    "online": "Reading online, from one server",
    "join": "Point-in-time join of events with three histories",
    "windows": "Updating windows by events",
}


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--install", action="store_true", help="make the environment of Feast, and end")
    parser.add_argument("--quick", action="store_true", help="a smaller run that ends within 50 s")
    parser.add_argument("--json", type=Path, metavar="PATH", help="also write headline and rows here")
    parser.add_argument("--only", action="append", choices=PARTS, help="only this part; may be given again")
    return parser.parse_args()


def install() -> None:
    print(f"installing Feast in {feast_peer.installation().folder} ...", flush=True)
    try:
        feast_peer.installation().install()
    except PeerFailed as error:
        sys.exit(str(error))


def main() -> None:
    args = arguments()
    if args.install:
        install()
        return
    if absent := feast_peer.why_absent():
        print(f"note: {absent}")
    print(machine() + (": quick, smaller runs" if args.quick else ""), flush=True)
    rows, headline = [], dict[str, float]()
    for name in args.only or PARTS:
        measure: Measure = importlib.import_module(f"benchmarks.features.{name}").measure
        found, figures = measure(args.quick)
        show(PARTS[name], found)
        rows += [{"part": name, **row} for row in found]
        headline |= figures
    conclude(rows, headline, args.json)


if __name__ == "__main__":
    main()
