"""The online door under load: its capacity beside a bare service's, and whether answers stay within 50 ms.

The real stack (Valkey, engine process, HTTP door) with the flights example. Capacity is closed-loop saturation: replies
of the model rung per second, the best of several concurrencies. Everything else is an open loop (Poisson), latency from
the instant at which a request was due. Load generator, bare service, door, engine and Valkey share this machine's
cores; the generator's own lateness stands in each row.

A caller that wants its answer within 50 ms of its own clock keeps some of them for the way there and back: requests
carry a budget of 45 ms. `--only NAME` runs one part beside the capacities: delay, bulk, door, lm, refusal, features.
"""

from __future__ import annotations

import asyncio
import gc
import json
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Final, TypeAlias

import uvloop

from benchmarks.door.generator import Generator
from benchmarks.door.stand import Stand, standing
from benchmarks.features.online import Workload, ours_and_bare
from benchmarks.features.valkey_server import valkey
from benchmarks.report import Row, conclude, options, show
from core_engine.settings import load_settings
from headrace.bench_serve import ServeOptions
from headrace.demo.notice import bulk_running
from headrace.demo.summary import quantile
from headrace.loadgen.report import Report
from headrace.machine import machine

Headline: TypeAlias = dict[str, float | None]  # None: the samples were too few

PARTS: Final = ("delay", "bulk", "door", "lm", "refusal", "features")
BUDGET_MS: Final = 45.0
WITHIN: Final = ("e2el:50",)
DELAY, RISK = "delay_risk", "route_risk"
LM_CONCURRENCY: Final = 4
LM_BATCH_1: Final = 1
HOURS: Final = 24
LM_WARM_UP_S: Final = 2.0  # the shared prefix is cached, and the engine has learnt how long its steps take
PATIENCE_S: Final = 2.0
BULK_STREAMS: Final = 4
IMPOSSIBLE_MS: Final = 3.0  # no first token comes as soon as that
ORDER: Final = (
    "capacity_vs_bare",
    "in_budget_delay_0.5x",
    "in_budget_delay_0.7x",
    "in_budget_delay_1x",
    "in_budget_door_0.8x",
    "in_budget_lm_1x",
    "in_budget_lm_2x",
    "in_budget_lm_5x",
    "degraded_delay_0.7x",
    "refusal_p99_ms",
    "lm_score_p50_ms_c1",
    "lm_score_p99_ms_c1",
    "lm_score_p99_ms_c4",
    "lm_score_p99_ms_1x",
    "lm_score_prefix_hit_rate",
)
SHOWN: Final = ("load", "req/s", "n", "in 50 ms", "median", "p99", "p99.9", "max", "failed", "rungs", "degraded by")
BESIDE: Final = ("in flight", "batch", "prefix", "late p99")


@dataclass(frozen=True, slots=True)
class Sizes:
    """Seconds of each load, and what a part tries."""

    closed_s: float
    lm_closed_s: float  # in the full run, 1,000 answers and more
    open_s: float
    warm_up_s: float
    concurrencies: tuple[int, ...]
    lm_concurrencies: tuple[int, ...]
    delay: tuple[float, ...]  # of the capacity
    fetches: int
    refusals_s: float
    overload_s: float  # above the door's ceiling; 0: not tried


FULL = Sizes(10.0, 30.0, 60.0, 5.0, (4, 8, 16, 32), (1, 4, 8, 16), (0.5, 0.7, 1.0), 5_000, 10.0, 10.0)
QUICK = Sizes(1.5, 2.5, 1.5, 0.5, (8,), (LM_BATCH_1, LM_CONCURRENCY), (0.7, 1.0), 300, 2.0, 0.0)


@dataclass(frozen=True, slots=True)
class Capacity:
    """Replies per second at saturation: the bare service's, by the model rung, by the prior alone, by the LM."""

    bare: float
    delay: float
    door: float
    lm: float


class Bench:
    """The loads of one run; rows and headline grow as they end."""

    def __init__(self, stand: Stand, generator: Generator, sizes: Sizes) -> None:
        self.stand = stand
        self.sizes = sizes
        self.rows: list[Row] = []
        self.headline: Headline = {}
        self._generator = generator
        self._delay = stand.bodies("delay", budget_ms=BUDGET_MS)
        self._risk = stand.bodies("risk", at_every_hour(stand.requests), budget_ms=BUDGET_MS)
        self._prior = stand.bodies("prior", budget_ms=BUDGET_MS, rungs=["prior"])

    async def capacity(self) -> Capacity:
        sizes, stand = self.sizes, self.stand
        patient = stand.bodies("patient")  # the predictor's own budget: saturation makes everybody wait
        asked = stand.bodies("patient_risk", at_every_hour(stand.requests))
        lm = await self._saturated("LM", stand.url, RISK, asked, sizes.lm_concurrencies)
        found = Capacity(
            bare=await self._saturated("bare service", stand.bare_url, DELAY, patient, sizes.concurrencies),
            delay=await self._saturated("delay_risk", stand.url, DELAY, patient, sizes.concurrencies),
            door=await self._saturated("door, prior only", stand.url, DELAY, self._prior, sizes.concurrencies),
            lm=lm,
        )
        self.headline["capacity_vs_bare"] = found.delay / found.bare
        return found

    async def _saturated(
        self, name: str, url: str, predictor: str, bodies: Path, concurrencies: Sequence[int]
    ) -> float:
        best, sizes = 0.0, self.sizes
        for concurrency in concurrencies:
            made = await self._generator.load(
                ServeOptions(
                    url=url,
                    predict=predictor,
                    bodies=bodies,
                    concurrency=concurrency,
                    duration_s=sizes.lm_closed_s if predictor == RISK else sizes.closed_s,
                    warm_up_s=max(sizes.warm_up_s, LM_WARM_UP_S) if predictor == RISK else sizes.warm_up_s,
                    goodput=WITHIN,
                )
            )
            wanted = "prior" if bodies is self._prior else "model"
            rate = made["request_throughput"] * made["rungs"].get(wanted, 0.0)
            best = max(best, rate)
            self.rows.append(self._row(f"{name}, closed loop of {concurrency}", rate, made))
            if predictor == RISK:
                self._scored(concurrency, made)
        return best

    def _scored(self, concurrency: int, made: Report) -> None:
        """A p99 is that of 100 answers or more, and else not known."""
        if concurrency == LM_BATCH_1:
            self.headline["lm_score_p50_ms_c1"] = made.get("median_e2el_ms")
            self.headline["lm_score_p99_ms_c1"] = made.get("p99_e2el_ms")
        if concurrency == LM_CONCURRENCY:
            self.headline["lm_score_p99_ms_c4"] = made.get("p99_e2el_ms")
            self.headline["lm_score_prefix_hit_rate"] = made["prefix_hit_rate"]

    async def delay(self, capacity: Capacity) -> None:
        for times in self.sizes.delay:
            made = await self._open("delay_risk", DELAY, self._delay, times, capacity.delay)
            self.headline[f"in_budget_delay_{times:g}x"] = made["slo_attainment"]
            if times == 0.7:
                self.headline["degraded_delay_0.7x"] = made["degraded_share"]

    async def bulk(self, capacity: Capacity) -> None:
        """Beside texts of the bulk pool, as many as it takes for the engine never to be idle."""
        async with AsyncExitStack() as exits:
            for _ in range(BULK_STREAMS):
                await exits.enter_async_context(bulk_running(self.stand.engine))
            made = await self._open(
                f"delay_risk beside {BULK_STREAMS} bulk texts", DELAY, self._delay, 0.5, capacity.delay
            )
        self.headline["degraded_delay_0.5x_bulk"] = made["degraded_share"]

    async def door(self, capacity: Capacity) -> None:
        made = await self._open("door, prior only", DELAY, self._prior, 0.8, capacity.door)
        self.headline["in_budget_door_0.8x"] = made["slo_attainment"]
        if self.sizes.overload_s:
            await self._open("door, prior only", DELAY, self._prior, 1.5, capacity.door, self.sizes.overload_s)
            made = await self._open("door, prior only, after that", DELAY, self._prior, 0.5, capacity.door)
            self.headline["in_budget_door_after_overload"] = made["slo_attainment"]

    async def lm(self, capacity: Capacity) -> None:
        for times in (1.0, 2.0, 5.0):
            made = await self._open("route_risk", RISK, self._risk, times, capacity.lm)
            self.headline[f"in_budget_lm_{times:g}x"] = made["slo_attainment"]
            if times == 1.0:
                self.headline["lm_score_p99_ms_1x"] = made.get("p99_e2el_ms")

    async def refusal(self, _: Capacity) -> None:
        """Texts whose callers have less time than a first token takes: the door says so at once."""
        prompts = self.stand.folder / "prompts.jsonl"
        prompts.write_text(json.dumps({"prompt": "Tell me about delays.", "output_tokens": 200}) + "\n")
        made = await self._generator.load(
            ServeOptions(
                url=self.stand.url,
                chat=self.stand.engine.model_name,
                prompts=prompts,
                rate=100.0,
                duration_s=self.sizes.refusals_s,
                warm_up_s=self.sizes.warm_up_s,
                headers=(f"X-Deadline-Ms: {IMPOSSIBLE_MS:g}",),
            )
        )
        refused = made["errors"].get("http_503", {})
        self.rows.append(self._row("chat that cannot be in time", made["request_rate"], made))
        self.headline["refusal_p99_ms"] = refused.get("p99_error_ms")

    async def _open(
        self, name: str, predictor: str, bodies: Path, times: float, capacity: float, seconds: float = 0.0
    ) -> Report:
        """`times` the capacity for `seconds`, or as long as all; callers go away after `PATIENCE_S`."""
        made = await self._generator.load(
            ServeOptions(
                url=self.stand.url,
                predict=predictor,
                bodies=bodies,
                rate=max(1.0, times * capacity),
                duration_s=seconds or self.sizes.open_s,
                warm_up_s=self.sizes.warm_up_s,
                timeout_s=PATIENCE_S,
                goodput=WITHIN,
            )
        )
        self.rows.append(self._row(f"{name}, {times:g}x", made["request_rate"], made))
        return made

    def _row(self, load: str, rate: float, made: Report) -> Row:
        late = made["send_lateness"]
        return {
            "load": load,
            "req/s": rate,
            "n": made["num_prompts"],
            "in 50 ms": made["slo_attainment"],
            **{name: made.get(f"{name}_e2el_ms") for name in ("median", "p99", "p99.9", "max")},
            "failed": _counts(made["errors"]),
            "rungs": _shares(made["rungs"]),
            "degraded by": "; ".join(f"{rung}: {_shares(why)}" for rung, why in made["degraded"].items()),
            "in flight": made["mean_concurrency"],
            "batch": made["mean_batch_size"],
            "prefix": made["prefix_hit_rate"],
            "late p99": None if late is None else late["p99_ms"],
            "conns": made["connections"]["peak"],
            "door MiB": self.stand.door_mib(),
        }


def at_every_hour(requests: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The same flights at every hour of their day, the hours taking turns: of questions to the language model, as many
    as differ; or its prefix cache would know whole prompts from the round before, not only what is constant in them."""
    asked: list[Mapping[str, Any]] = []
    for turn in range(HOURS):
        for index, inputs in enumerate(requests):
            at = datetime.fromisoformat(inputs["scheduled_departure"]).replace(hour=(turn + index) % HOURS)
            asked.append({**inputs, "scheduled_departure": at.isoformat()})
    return asked


def fetch(sizes: Sizes) -> tuple[list[Row], dict[str, float]]:
    """One entity by 10 views of 25 features, beside a bare pipelined read of the same values."""
    gc.collect()
    gc.freeze()  # or the modules of this process, not the reads, make the p99
    workload = Workload("one", 1, 10, 25, sizes.fetches)
    try:
        with valkey() as port:
            ms = uvloop.run(ours_and_bare(port, [workload], 200))[workload.name]
    finally:
        gc.unfreeze()
    p99 = {way: quantile(taken, 0.99) for way, taken in ms.items()}
    rows: list[Row] = [
        {"fetch": f"10 views x 25, {way}", "n": len(taken), "p50 ms": quantile(taken, 0.5), "p99 ms": p99[way]}
        for way, taken in ms.items()
    ]
    return rows, {"feature_fetch_p99_over_bare_ms": p99["ours"] - min(v for way, v in p99.items() if way != "ours")}


async def measure(sizes: Sizes, parts: Sequence[str], folder: Path) -> tuple[list[Row], Headline, str]:
    async with standing(load_settings(), folder) as stand:
        with Generator(folder) as generator:
            bench = Bench(stand, generator, sizes)
            capacity = await bench.capacity()
            loads = {
                "delay": bench.delay,
                "bulk": bench.bulk,
                "door": bench.door,
                "lm": bench.lm,
                "refusal": bench.refusal,
            }
            for name, load in loads.items():
                if name in parts:
                    await load(capacity)
    return bench.rows, bench.headline, stand.engine.weights


def main() -> None:
    args = options(__doc__ or "", PARTS)
    sizes, parts = QUICK if args.quick else FULL, args.only or PARTS
    with tempfile.TemporaryDirectory(prefix="hr-") as folder:
        rows, headline, precision = asyncio.run(measure(sizes, parts, Path(folder)))
    print(machine())
    show(
        f"POST /v1/predict, ms from due, budget {BUDGET_MS:g} of 50 ms, engine {precision}; generator and servers "
        "share the cores",
        [{name: row[name] for name in (*SHOWN, *BESIDE)} for row in rows],
    )
    fetched: list[Row] = []
    if "features" in parts:
        fetched, figures = fetch(sizes)
        headline |= figures
        show("Feature fetch, one client, loopback", fetched)
    unknown = [name for name, value in headline.items() if value is None]
    if unknown:
        print(f"too few samples for {', '.join(unknown)}")
    known = {name: value for name in sorted(headline, key=_place) if (value := headline[name]) is not None}
    conclude([*rows, *fetched], known, args.json)


def _place(name: str) -> int:
    return ORDER.index(name) if name in ORDER else len(ORDER)


def _shares(shares: dict[str, float]) -> str:
    return ", ".join(f"{name} {share:.1%}" for name, share in shares.items())


def _counts(errors: Report) -> str:
    return ", ".join(f"{error['count']} {kind}" for kind, error in errors.items()) or "0"


if __name__ == "__main__":
    main()
