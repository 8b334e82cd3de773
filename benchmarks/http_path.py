"""What the HTTP path costs per token, and where it saturates: the real door behind an engine that computes nothing.

256 streams of one token per step, from a fake engine that speaks the engine's own protocol at a steady rate; the door
in its own process, with the real tokenizer; the load generator in another. They share this machine's cores: how late
the generator's own loop and the fake engine were stands in each row. CPU time is the door's alone, all of its threads.
The floor in the same run is a bare Starlette server that sends the same bytes, encoded beforehand, at the same pace.

Saturation: the rate grows by steps until the door does not keep up; it is the most that was delivered. The profile is
of another door, at half of that. `--only NAME` runs one part beside the stream: whole, profile.
"""

from __future__ import annotations

import json
import os
import signal
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchmarks.door.path_figures import Figures
from benchmarks.door.path_stand import PathStand, Server, path_stand
from benchmarks.report import Row, conclude, options, show
from headrace.machine import machine

PARTS: Final = ("whole", "profile")
NUM_STREAMS: Final = 256
RATE: Final = 20_000.0  # tokens/s, 78 of each stream
GROWTH: Final = 1.3
MOST: Final = 200_000.0
SHARES: Final = (0.25, 0.5, 0.75)
WHOLE_TOKENS: Final = 200
TITLE: Final = (
    f"{NUM_STREAMS} streams, one token per step each; tokens/s, CPU s per 1,000 tokens, ms (p50 / p99; lateness: p99); "
    "server, generator and engine share the cores"
)
DOOR: Final = ("headrace", "door")


@dataclass(frozen=True, slots=True)
class Sizes:
    """Seconds of each load, and the rate that the search for saturation begins with."""

    seconds: float
    warm_up_s: float
    profile_s: float
    first_rate: float


FULL = Sizes(5.0, 1.0, 10.0, 8_000.0)
QUICK = Sizes(1.0, 0.3, 2.0, 18_000.0)


class Bench:
    """The loads of one run; rows and headline grow as they end."""

    def __init__(self, stand: PathStand, sizes: Sizes) -> None:
        self.rows: list[Row] = []
        self.headline: dict[str, float] = {}
        self._stand = stand
        self._sizes = sizes

    def stream(self, door: Server, bare: Server) -> float:
        """All loads of the door and the bare server; the rate at which the door saturates."""
        at_rate = self._door("at the rate aimed at", door, RATE)
        floor = self._bare(bare, RATE)
        saturation = max(at_rate.delivered, self._saturation(door))
        for share in SHARES:
            made = self._door(f"{share:.0%} of saturation", door, share * saturation)
            assert made.itl_added_ms is not None
            for name, value in zip(("p50", "p99"), made.itl_added_ms, strict=True):
                self.headline[f"itl_added_{name}_ms_{share:.0%}".rstrip("%")] = value
        self.headline |= {
            "cpu_s_per_1k_tokens": at_rate.cpu_s,
            "cpu_vs_bare": at_rate.cpu_s / floor.cpu_s,
            "delivered_at_20k": at_rate.delivered,
            "saturation_tokens_per_s": saturation,
        }
        return saturation

    def whole(self, door: Server) -> None:
        made = self._stand.whole(door, RATE, WHOLE_TOKENS)
        self._add(f"not streamed, {WHOLE_TOKENS} tokens each", made)
        self.headline["whole_cpu_s_per_1k_tokens"] = made.cpu_s

    def profile(self, saturation: float) -> list[Row]:
        """Shares of the door's CPU time."""
        path = self._stand.folder / "profile.json"
        with self._stand.door("benchmarks.door.door_profile", str(path)) as door:
            os.kill(door.child.process.pid, signal.SIGUSR1)
            self._stand.stream(door, SHARES[1] * saturation, self._sizes.profile_s, self._sizes.warm_up_s)
        samples: dict[str, int] = json.loads(path.read_text())
        total = sum(samples.values())
        ranked = sorted(samples.items(), key=lambda each: -each[1])
        return [{"part": part, "share of CPU": f"{count / total:.1%}", "samples": count} for part, count in ranked]

    def _saturation(self, door: Server) -> float:
        """A load that fails is tried once more: on a shared machine one failure says little."""
        most, rate = 0.0, self._sizes.first_rate
        while rate < MOST:
            tries = [self._door("growing", door, rate)]
            if not tries[0].keeps_up:
                tries.append(self._door("growing, again", door, rate))
            most = max(most, *(made.delivered for made in tries))
            if not tries[-1].keeps_up:
                break
            rate *= GROWTH
        return most

    def _door(self, load: str, door: Server, rate: float) -> Figures:
        return self._add(load, self._stand.stream(door, rate, self._sizes.seconds, self._sizes.warm_up_s))

    def _bare(self, bare: Server, rate: float) -> Figures:
        made = self._stand.bare_stream(bare, rate, self._sizes.seconds, self._sizes.warm_up_s)
        return self._add("bare server", made)

    def _add(self, load: str, made: Figures) -> Figures:
        self.rows.append(
            {
                "load": load,
                "offered": round(made.offered),
                "delivered": round(made.delivered),
                "kept up": "yes" if made.keeps_up else "no",
                "CPU s/1k": f"{made.cpu_s:.4f}",
                "cores": f"{made.cores:.2f}",
                "delay, ms": _pair(made.delay_ms),
                "ITL added": _pair(made.itl_added_ms),
                "gen. late": f"{made.late_p99_ms:.1f}",
                "engine late": "" if made.engine_late_p99_ms is None else f"{made.engine_late_p99_ms:.1f}",
            }
        )
        return made


def measure(sizes: Sizes, parts: Sequence[str], folder: Path) -> tuple[Bench, list[Row]]:
    with path_stand(folder, NUM_STREAMS) as stand:
        bench = Bench(stand, sizes)
        with stand.door(*DOOR) as door:
            with stand.bare(stand.record(door)) as bare:
                saturation = bench.stream(door, bare)
            if "whole" in parts:
                bench.whole(door)
        return bench, bench.profile(saturation) if "profile" in parts else []


def main() -> None:
    args = options(__doc__ or "", PARTS)
    with tempfile.TemporaryDirectory(prefix="hr-") as folder:
        bench, profile = measure(QUICK if args.quick else FULL, args.only or PARTS, Path(folder))
    print(machine())
    show(TITLE, bench.rows)
    if profile:
        show("Where the door's CPU time goes, at half of saturation", profile)
    conclude([*bench.rows, *profile], bench.headline, args.json)


def _pair(values: tuple[float, float] | None) -> str:
    return "" if values is None else " / ".join(f"{value:.1f}" for value in values)


if __name__ == "__main__":
    main()
