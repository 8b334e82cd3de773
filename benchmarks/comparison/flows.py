"""The four ways of measuring: side by side in turns, over HTTP, from a cold process, and against float32.

Each gives results; what could not be measured of a peer is told through `Plan.note` and left out, never guessed.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from benchmarks.comparison.divergence import (
    MAX_TOKENS,
    EmulatedModel,
    MeasuredModel,
    emulated_model,
    material,
    our_model,
    reference_model,
)
from benchmarks.comparison.installation import Installation, PeerFailed
from benchmarks.comparison.measures import Figures, Measure, take_turns, warm_up
from benchmarks.comparison.ours import OurEngine, Precision
from benchmarks.comparison.peer_process import PeerProcess
from benchmarks.comparison.results import DIVERGENCE, Result
from benchmarks.comparison.served import Answer, Server, arrivals_of, our_server, vllm_server
from benchmarks.comparison.side import OURS, Label, Side
from benchmarks.comparison.variants import Variant
from benchmarks.comparison.workload import Workload, salted, shortened
from core_engine.quality.comparison import compare_all
from core_engine.quality.model import Model
from core_engine.quality.report import Report
from core_engine.quality.texts import Text

RATE = 1.9  # requests per second of W2
QUICK_KL_TOKENS = 2048
QUICK_PATIENCE_S = 12.0  # for a peer to be ready: vLLM often takes longer, and is then left out of a quick run
MEASURABLE = ("vllm", "transformers")  # give full distributions


@dataclass(frozen=True, slots=True)
class Plan:
    """What this command measures. `run` is when it started; `precisions` are ours, `variants` the peers'."""

    run: str
    workload: Workload
    rounds: int
    quick: bool
    precisions: Sequence[Precision]
    variants: Sequence[Variant]
    peers: Path
    note: Callable[[str], None]

    def installation(self, variant: Variant) -> Installation:
        return Installation(variant.peer, self.peers)


def side_by_side(plan: Plan, measures: Sequence[Measure]) -> list[Result]:
    """Decode, W1, prefill, W3: all sides are up, and take turns."""
    with ExitStack() as exits:
        sides: list[Side] = []
        for name, start in starters(plan, exits):
            try:
                side = start()
                exits.callback(side.close)
                warm_up(side, plan.workload)
                sides.append(side)
            except PeerFailed as error:
                plan.note(f"{name}: {error}")
        found = take_turns(sides, measures, plan.rounds)
    for figures in found:
        if figures.failure:
            plan.note(figures.failure)
    return [_speed(plan, figures) for figures in found if figures.values]


def starters(plan: Plan, exits: ExitStack) -> Iterator[tuple[str, Callable[[], Side]]]:
    """Every side by name, ours first, and what starts it."""
    for precision in plan.precisions:
        folder = Path(exits.enter_context(tempfile.TemporaryDirectory(prefix="hr-")))
        yield str(precision), partial(OurEngine, precision, folder)
    for variant in plan.variants:
        patience_s = QUICK_PATIENCE_S if plan.quick else None
        yield variant.name, partial(PeerProcess, variant, plan.installation(variant), patience_s=patience_s)


def _speed(plan: Plan, figures: Figures) -> Result:
    measure = figures.measure
    return Result(
        plan.run,
        measure.name,
        measure.unit,
        figures.label,
        tuple(figures.values),
        is_lower_better=measure.is_lower_better,
        against=measure.against,
        concurrency=measure.concurrency,
        requests=measure.num_requests,
        rss_mib=figures.peak_rss_bytes / (1 << 20),
    )


def from_cold(plan: Plan) -> list[Result]:
    """Seconds from starting a process to its first token, after one start that warms the disk (and compiles)."""
    values: dict[Label, list[float]] = {}
    failed: set[str] = set()
    for number in range(plan.rounds + 1):
        with ExitStack() as exits:
            for name, start in starters(plan, exits):
                if name in failed:
                    continue
                try:
                    label, seconds = _first_token_s(plan, start)
                except PeerFailed as error:
                    failed.add(name)
                    plan.note(f"{name}: {error}")
                    continue
                if number:
                    values.setdefault(label, []).append(seconds)
    how = "process start to first token of a 512-token prompt"
    return [Result(plan.run, "load", "s", label, tuple(each), how=how) for label, each in values.items()]


def _first_token_s(plan: Plan, start: Callable[[], Side]) -> tuple[Label, float]:
    with closing(start()) as side:
        side.run(salted(shortened(plan.workload.prefill[512][:1], 1), 0), 1)
        return side.label, side.since_start_s()


def over_http(plan: Plan) -> list[Result]:
    """W2 against vLLM's server: the only peer here whose own OpenAI route takes part.

    Raises:
        PeerFailed: ours did not do it.
    """
    answers: dict[Label, list[list[Answer]]] = {}
    count = 16 if plan.quick else len(plan.workload.w1)
    with ExitStack() as exits:
        servers = list(_servers(plan, Path(exits.enter_context(tempfile.TemporaryDirectory(prefix="hr-"))), exits))
        for number in range(plan.rounds):
            arrivals = arrivals_of(plan.workload, RATE, number, count)
            for server in list(servers):
                try:
                    answers.setdefault(server.label, []).append(server.replay(arrivals))
                except PeerFailed as error:
                    servers.remove(server)
                    _leave_out(plan, server.label, error)
    prompt_tokens = {label.name: sum(a.prompt_tokens for a in each[0]) for label, each in answers.items() if each}
    if len(set(prompt_tokens.values())) > 1:
        plan.note(f"W2 is not the same on all sides, prompt tokens are {prompt_tokens}")
    return [result for label, each in answers.items() if each for result in _latencies(plan, label, each)]


def _servers(plan: Plan, folder: Path, exits: ExitStack) -> Iterator[Server]:
    """Ours and vLLM's, ready; one that does not come up is named."""
    starts: list[Callable[[], Server]] = [partial(our_server, p, _own(folder, p.weights)) for p in plan.precisions]
    served = [variant for variant in plan.variants if variant.peer == "vllm"]
    starts += [partial(vllm_server, variant, plan.installation(variant), folder) for variant in served]
    for start in starts:
        server = start()
        exits.callback(server.close)
        try:
            server.wait()
            yield server
        except PeerFailed as error:
            _leave_out(plan, server.label, error)


def _leave_out(plan: Plan, label: Label, error: PeerFailed) -> None:
    """Ours is not left out: there is nothing to compare then."""
    if label.peer == OURS:
        raise error
    plan.note(f"{label.name}: {error}")


def _own(folder: Path, name: str) -> Path:
    own = folder / name
    own.mkdir()
    return own


def _latencies(plan: Plan, label: Label, rounds: Sequence[Sequence[Answer]]) -> Iterator[Result]:
    seconds = {
        "w2_ttft": [[answer.ttft_s for answer in each] for each in rounds],
        "w2_tpot": [[answer.tpot_s for answer in each] for each in rounds],
    }
    how, count = f"Poisson {RATE} req/s, HTTP, streamed", len(rounds[0])
    for name, by_round in seconds.items():
        for percent in (50, 99):
            ms = tuple(1e3 * quantile(each, percent / 100) for each in by_round)
            yield Result(plan.run, f"{name}_p{percent}", "ms", label, ms, concurrency=0, requests=count, how=how)


def quantile(values: Sequence[float], q: float) -> float:
    """Between the two nearest order statistics, as NumPy's default."""
    if len(values) == 1:
        return values[0]
    return statistics.quantiles(values, n=1000, method="inclusive")[round(q * 1000) - 1]


def against_float32(plan: Plan, text_file: Path | None) -> list[Result]:
    """Mean KL per token of every precision, ours and theirs, on one text."""
    text, sequences = material(text_file, QUICK_KL_TOKENS if plan.quick else MAX_TOKENS)
    labels = {label.name: label for label in (precision.label() for precision in plan.precisions)}
    models: dict[str, Model] = {precision.label().name: our_model(precision) for precision in plan.precisions}
    with ExitStack() as exits:
        folder = Path(exits.enter_context(tempfile.TemporaryDirectory(prefix="hr-")))
        for variant in plan.variants:
            labels[variant.name] = variant.label("")
            try:
                if variant.peer in MEASURABLE:
                    peer = exits.enter_context(closing(PeerProcess(variant, plan.installation(variant))))
                    peer.save_logits(sequences[0][:8], folder / "probe.npy")
                    labels[variant.name], models[variant.name] = peer.label, MeasuredModel(peer, folder)
                elif variant.bits != 16:
                    models[variant.name] = emulated_model(variant.bits, per_channel=variant.peer == "ctranslate2")
            except PeerFailed as error:
                plan.note(f"{variant.name}: {error}")
        reports = compare_all(reference_model(), models, sequences)
    return [_divergence(plan, labels[name], report, models[name], text) for name, report in reports.items()]


def _divergence(plan: Plan, label: Label, report: Report, model: Model, text: Text) -> Result:
    way = f"emulated: {model.scheme}" if isinstance(model, EmulatedModel) else "measured"
    how = f"{way}; top-1 agreement {report.top1_agreement:.4f}; {text.name}"
    return Result(plan.run, DIVERGENCE, "nats", label, (report.mean_kl,), requests=report.num_tokens, how=how)
