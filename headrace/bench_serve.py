"""Composition root of `headrace bench serve`: one async process that asks a server and prints what it saw."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import uvloop
from rich.console import Console

from core_engine.errors import ConfigurationError
from core_engine.llm.tokenizer import Tokenizer
from core_engine.settings import EngineSettings
from core_engine.simulation.trace import Trace, TraceRow, read_trace
from headrace.heap import settle
from headrace.loadgen.arrivals import Arrivals, before, constant, of_trace, poisson
from headrace.loadgen.connections import Address, ConnectionPool
from headrace.loadgen.load_run import LoadRun
from headrace.loadgen.plot import plot
from headrace.loadgen.prompts import Prompt, RandomPrompts, read_bodies, read_prompts
from headrace.loadgen.report import CLOSED_LOOP, Plan, Report, parse_goodput, report
from headrace.loadgen.screen import load_of, show
from headrace.loadgen.targets import Generation, Target, chat_target, completions_target, predict_target
from headrace.wheels import model_file

DEFAULT_OUTPUT_TOKENS = 128


@dataclass(frozen=True, slots=True)
class ServeOptions:
    """What the command line asked for. Exactly one of `predict`, `chat` and `completions` names whom to ask."""

    url: str
    predict: str | None = None
    chat: str | None = None
    completions: str | None = None
    bodies: Path | None = None
    prompts: Path | None = None
    trace: Path | None = None
    input_len: int | None = None
    output_len: int | None = None
    num_prompts: int = 1000
    arrivals: Arrivals = Arrivals.POISSON
    rate: float | None = None
    speed: float = 1.0
    concurrency: int | None = None
    duration_s: float = 30.0
    warm_up_s: float = 5.0
    timeout_s: float = 60.0
    connections: int = 512
    goodput: Sequence[str] = ()
    headers: Sequence[str] = ()
    stream: bool = True
    ignore_eos: bool = False
    temperature: float = 0.0
    tokenizer: Path | None = None
    seed: int = 0


@dataclass(slots=True)
class Prepared:
    """All that is made before the first request, so that nothing of it makes one late."""

    target: Target
    plan: Plan
    run: LoadRun
    due_s: Iterator[float] = field(default_factory=lambda: iter(()))


def bench_serve(
    options: ServeOptions, engine: EngineSettings, console: Console, json_path: Path | None, plot_path: Path | None
) -> Report:
    """Run the load, print the report, and write it and the plot where asked for.

    Raises:
        ConfigurationError: options that do not fit together, or a file that cannot be used; nothing was sent.
    """
    ready = prepare(options, engine)
    settle()
    uvloop.run(drive(ready, options))
    made = report(ready.plan, ready.target, ready.run)
    show(made, console)
    if json_path is not None:
        json_path.write_text(json.dumps(made, indent=1) + "\n")
    if plot_path is not None:
        plot(ready.run, f"{made['endpoint']} of {made['base_url']}: {load_of(made)}", plot_path)
    return made


def prepare(options: ServeOptions, engine: EngineSettings) -> Prepared:
    """Check the options, read the files, make the requests."""
    trace = read_trace(options.trace) if options.trace is not None else None
    target = _target(options, trace, engine)
    address = Address.of(options.url)
    pool = ConnectionPool(address, options.connections)
    run = LoadRun(target.requests(address, _headers(options.headers)), target.reader, pool, options.timeout_s)
    is_closed = options.concurrency is not None
    plan = Plan(
        base_url=options.url,
        arrivals=CLOSED_LOOP if is_closed else str(options.arrivals),
        request_rate=None if is_closed else options.rate,
        max_concurrency=options.concurrency,
        warm_up_s=options.warm_up_s,
        goodput=parse_goodput(options.goodput),
    )
    return Prepared(target, plan, run, iter(()) if is_closed else _arrivals(options, trace))


async def drive(ready: Prepared, options: ServeOptions) -> None:
    seconds = options.warm_up_s + options.duration_s
    try:
        if options.concurrency is not None:
            await ready.run.closed_loop(options.concurrency, seconds)
        else:
            await ready.run.open_loop(before(ready.due_s, seconds))
    finally:
        ready.run.pool.close()
        await asyncio.sleep(0)  # the closed sockets' last words


def _arrivals(options: ServeOptions, trace: Trace | None) -> Iterator[float]:
    if options.arrivals is Arrivals.TRACE:
        if trace is None or options.rate is not None:
            raise ConfigurationError("--arrivals trace takes its times from --trace, and no --rate; see also --speed")
        return of_trace(trace, options.speed)
    if options.rate is None:
        raise ConfigurationError("give --rate (requests per second), or --concurrency for a closed loop")
    return poisson(options.rate, options.seed) if options.arrivals is Arrivals.POISSON else constant(options.rate)


def _target(options: ServeOptions, trace: Trace | None, engine: EngineSettings) -> Target:
    named = [name for name in (options.predict, options.chat, options.completions) if name is not None]
    if len(named) != 1:
        raise ConfigurationError("name whom to ask by one of --predict, --chat and --completions")
    if options.predict is not None:
        if options.bodies is None or options.prompts is not None or options.input_len is not None:
            raise ConfigurationError('--predict needs --bodies alone, a file of lines such as {"inputs": {...}}')
        return predict_target(options.predict, read_bodies(options.bodies))
    if options.bodies is not None:
        raise ConfigurationError("--bodies is for --predict; give --prompts, --trace or --input-len")
    prompts = _prompts(options, trace, engine)
    generation = Generation(options.stream, options.ignore_eos, options.temperature)
    make = chat_target if options.chat is not None else completions_target
    return make(named[0], prompts, generation)


def _prompts(options: ServeOptions, trace: Trace | None, engine: EngineSettings) -> list[Prompt]:
    given = [source for source in (options.prompts, trace, options.input_len) if source is not None]
    if len(given) != 1:
        raise ConfigurationError("say what to send by one of --prompts, --trace and --input-len")
    if options.prompts is not None:
        return read_prompts(options.prompts, options.output_len)
    words = RandomPrompts(Tokenizer.from_path(options.tokenizer or model_file(engine)), options.seed)
    if trace is not None:
        return words.of_trace(_rows(options, trace))
    assert options.input_len is not None
    return words.of_length(options.input_len, options.output_len or DEFAULT_OUTPUT_TOKENS, options.num_prompts)


def _rows(options: ServeOptions, trace: Trace) -> Sequence[TraceRow]:
    """As many as prompts are wanted; by the trace's own times, all that are due."""
    if options.output_len is not None:
        raise ConfigurationError("--output-len: a trace has its own lengths")
    if options.concurrency is not None or options.arrivals is not Arrivals.TRACE:
        return trace.rows[: options.num_prompts]
    end_s = (options.warm_up_s + options.duration_s) * options.speed
    return [row for row in trace.rows if row.arrival_s is not None and row.arrival_s < end_s] or trace.rows[:1]


def _headers(given: Sequence[str]) -> dict[str, str]:
    headers: dict[str, str] = {}
    for text in given:
        name, colon, value = text.partition(":")
        if not colon or not name.strip() or "\n" in text or "\r" in text:
            raise ConfigurationError(f"--header {name!r}, expected NAME: VALUE")
        headers[name.strip()] = value.strip()
    return headers
