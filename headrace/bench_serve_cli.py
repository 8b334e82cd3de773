"""`headrace bench serve`: the command. It builds its composition root when it runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from headrace.loadgen.arrivals import Arrivals


def serve(
    url: Annotated[str | None, typer.Option(help="The server. Default: the door of this machine's settings.")] = None,
    predict: Annotated[str | None, typer.Option(help="Ask this predictor, with --bodies.")] = None,
    chat: Annotated[str | None, typer.Option(help="Ask this model by /v1/chat/completions.")] = None,
    completions: Annotated[str | None, typer.Option(help="Ask this model by /v1/completions.")] = None,
    bodies: Annotated[Path | None, typer.Option(help='JSON lines such as {"inputs": {...}}.')] = None,
    prompts: Annotated[Path | None, typer.Option(help='JSON lines: {"prompt": "...", "output_tokens": 64}.')] = None,
    trace: Annotated[Path | None, typer.Option(help="A trace of lengths; its times with --arrivals trace.")] = None,
    input_len: Annotated[int | None, typer.Option(help="Random prompts of so many tokens.", min=1)] = None,
    output_len: Annotated[int | None, typer.Option(help="Tokens to ask for.", min=1)] = None,
    num_prompts: Annotated[int, typer.Option(help="How many different random prompts.", min=1)] = 1000,
    arrivals: Annotated[Arrivals, typer.Option(help="When requests are due.")] = Arrivals.POISSON,
    rate: Annotated[float | None, typer.Option(help="Requests per second.", min=0.001)] = None,
    speed: Annotated[float, typer.Option(help="A trace's times go so many times faster.", min=0.001)] = 1.0,
    concurrency: Annotated[int | None, typer.Option(help="A closed loop of so many instead.", min=1)] = None,
    duration: Annotated[float, typer.Option(help="Seconds that are measured.", min=0.1)] = 30.0,
    warm_up: Annotated[float, typer.Option(help="Seconds before them that are not.", min=0)] = 5.0,
    timeout: Annotated[float, typer.Option(help="Seconds after which a request has failed.", min=0.001)] = 60.0,
    connections: Annotated[int, typer.Option(help="The most connections.", min=1)] = 512,
    goodput: Annotated[list[str] | None, typer.Option(help="An objective, e2el:50, ttft:200 or tpot:30.")] = None,
    header: Annotated[list[str] | None, typer.Option(help="Sent with each request: 'NAME: VALUE'.")] = None,
    stream: Annotated[bool, typer.Option(help="Stream completions.")] = True,
    ignore_eos: Annotated[bool, typer.Option("--ignore-eos", help="Exactly as many tokens as asked for.")] = False,
    temperature: Annotated[float, typer.Option(help="0 is greedy.", min=0)] = 0.0,
    tokenizer: Annotated[Path | None, typer.Option(help="Of random prompts. Default: the model's.")] = None,
    seed: Annotated[int, typer.Option(help="Of arrivals and prompts.")] = 0,
    json: Annotated[Path | None, typer.Option(help="Also write the report to this file.")] = None,
    plot: Annotated[Path | None, typer.Option(help="Also draw the run into this file.")] = None,
) -> None:
    """Load a server from an open loop and report latency from when each request was due.

    Works against any OpenAI-compatible server. Result keys are those of vLLM's serving benchmark where they mean the
    same.
    """
    from rich.console import Console

    from core_engine.settings import load_settings
    from headrace.bench_serve import ServeOptions, bench_serve

    settings = load_settings()
    options = ServeOptions(
        url=url or f"http://{settings.http.host}:{settings.http.port}",
        predict=predict,
        chat=chat,
        completions=completions,
        bodies=bodies,
        prompts=prompts,
        trace=trace,
        input_len=input_len,
        output_len=output_len,
        num_prompts=num_prompts,
        arrivals=arrivals,
        rate=rate,
        speed=speed,
        concurrency=concurrency,
        duration_s=duration,
        warm_up_s=warm_up,
        timeout_s=timeout,
        connections=connections,
        goodput=goodput or (),
        headers=header or (),
        stream=stream,
        ignore_eos=ignore_eos,
        temperature=temperature,
        tokenizer=tokenizer,
        seed=seed,
    )
    bench_serve(options, settings.engine, Console(), json, plot)
