"""Ours against every peer on the CPU: one workload, side by side, medians, ratios, precision and versions beside each.

`--install PEER...` makes one environment per peer and the model files that it reads, in the folder
HEADRACE_BENCH_PEERS. Without it the peers that are installed are measured; one that is not, or that fails, is named and
left out. Ours always runs as its engine process behind its client. Rows may come from several commands: with
`--append` those that the file of `--json` holds already are kept, and the table and the headline are of all.
"""

from __future__ import annotations

import argparse
import sys
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console

from benchmarks.comparison.flows import Plan, against_float32, from_cold, over_http, side_by_side
from benchmarks.comparison.installation import Installation, PeerFailed, peers_folder
from benchmarks.comparison.measures import speed_measures
from benchmarks.comparison.ours import Precision
from benchmarks.comparison.results import Result, headline, merged, read, stored, table
from benchmarks.comparison.variants import BEST, PEERS, VARIANTS, Variant, chosen
from benchmarks.comparison.workload import load_workload
from benchmarks.report import conclude, show
from core_engine.errors import HeadraceError
from headrace.machine import machine

ROWS = ("decode", "w1", "w1_c1", "w1_c8", "w1_c32", "prefill", "w3", "w2", "load", "kl")
QUICK_ROWS = ("decode", "w1_c8", "w1_c32", "prefill")
OURS = {8: "int8", 16: "bfloat16", 4: "int4"}


def arguments() -> argparse.Namespace:
    names = sorted({*PEERS, *(variant.name for variant in VARIANTS)})
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--install", nargs="+", choices=PEERS, metavar="PEER", help=f"one of {', '.join(PEERS)}")
    parser.add_argument("--quick", action="store_true", help="fewer and shorter requests, within 50 s")
    parser.add_argument("--json", type=Path, metavar="PATH", help="also write headline and rows here")
    parser.add_argument("--append", action="store_true", help="keep the rows that the JSON file has")
    parser.add_argument("--peers", nargs="*", choices=names, metavar="PEER", help=f"some of {', '.join(names)}")
    parser.add_argument("--rows", nargs="*", choices=ROWS, metavar="ROW", help=f"some of {', '.join(ROWS)}")
    parser.add_argument("--bits", nargs="+", type=int, choices=sorted(OURS), default=[8], help="classes of weights")
    parser.add_argument("--ours", nargs="+", metavar="WEIGHTS/KV", help="our precisions; default: one per class")
    parser.add_argument("--rounds", type=int, help="repetitions of each measure, default 3 (quick: 1)")
    parser.add_argument("--text", type=Path, metavar="FILE", help="for kl instead of the quality gate's own text")
    return parser.parse_args()


def install(names: list[str]) -> None:
    for name in names:
        print(f"installing {name} in {peers_folder()} ...", flush=True)
        try:
            Installation(name, peers_folder()).install()
        except PeerFailed as error:
            note(f"{name}: {error}")


def note(text: str) -> None:
    print(f"note: {text}", flush=True)


def installed(wanted: list[Variant]) -> list[Variant]:
    """Those that are there; the others are named."""
    folder = peers_folder()
    for peer in dict.fromkeys(variant.peer for variant in wanted):
        each = Installation(peer, folder)
        if not each.is_complete:
            note(f"{peer} is not installed in {folder}: python -m benchmarks.peers --install {peer}")
        for line in each.notes() if each.is_complete else ():
            print(line)
    return [variant for variant in wanted if Installation(variant.peer, folder).is_complete]


def plan_of(args: argparse.Namespace) -> Plan:
    peers = args.peers if args.peers is not None else list(BEST if args.quick else PEERS)
    return Plan(
        run=datetime.now(UTC).isoformat(timespec="seconds"),
        workload=load_workload(),
        rounds=args.rounds or (1 if args.quick else 3),
        quick=args.quick,
        precisions=[Precision.parse(text) for text in args.ours or [OURS[bits] for bits in args.bits]],
        variants=installed(chosen(peers, args.bits)),
        peers=peers_folder(),
        note=note,
    )


def measured(args: argparse.Namespace, plan: Plan) -> list[Result]:
    """The rows asked for. Raises `HeadraceError` or `PeerFailed` if ours cannot run."""
    rows = args.rows if args.rows is not None else list(QUICK_ROWS if args.quick else ROWS)
    speed = [m for m in speed_measures(plan.workload, quick=plan.quick) if m.name.startswith(tuple(rows))]
    found = side_by_side(plan, speed) if speed else []
    found += over_http(plan) if "w2" in rows else []
    found += from_cold(plan) if "load" in rows else []
    return found + (against_float32(plan, args.text) if "kl" in rows else [])


def main() -> None:
    args = arguments()
    if args.install:
        install(args.install)
        return
    plan = plan_of(args)
    if not plan.variants:
        print("no peer is installed: ours alone, no ratios")
    try:
        new = measured(args, plan)
    except (HeadraceError, PeerFailed) as error:
        sys.exit(f"ours cannot be measured: {error} {' '.join(getattr(error, '__notes__', ()))}")
    results = merged(read(args.json) if args.append and args.json else [], new)
    if not results:
        sys.exit("nothing was measured")
    Console().print(f"Workload: {plan.workload.source}. Medians of the rounds; ours / theirs > 1: ours is better.")
    show(f"Ours and the peers, SmolLM2-135M-Instruct, greedy\n{machine()}", table(results))
    conclude(stored(results), headline(results), args.json)


if __name__ == "__main__":
    main()
