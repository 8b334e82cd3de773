"""Composition root of `headrace quality`: a model and two dials in, what they cost in quality and a verdict out."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

import torch
from rich.console import Console
from rich.table import Table

from core_engine.errors import ConfigurationError
from core_engine.llm.cpu_decoder import CpuDecoder
from core_engine.llm.gguf_reader import default_model_path
from core_engine.llm.model_decoder import AnyDecoder, Dials, WeightPrecision, load_decoder, make_decoder
from core_engine.llm.model_files import load_quantised_model
from core_engine.llm.quantised_weights import Scheme
from core_engine.llm.tokenizer import Tokenizer
from core_engine.llm.weights_cache import default_cache_folder
from core_engine.quality.gate import Findings, Material, measure
from core_engine.quality.limits import Verdict, load_limits, verdicts
from core_engine.quality.plot import plot
from core_engine.quality.report import Bucket
from core_engine.quality.source import Source, source
from core_engine.quality.texts import LENGTHS, Text, default_text, read_text


@dataclass(frozen=True, slots=True)
class QualityOptions:
    """What the command line asked for. None: the wheel's model, the default text, the limits that come with us."""

    model: Path | None = None
    weights: WeightPrecision = "int8"
    kv: Literal["model", "int8"] = "model"
    kernel: Literal["auto", "reference"] = "auto"
    requantise: bool = False
    text: Path | None = None
    max_tokens: int = 20_480
    max_context: int = max(LENGTHS)
    limits: Path | None = None


@dataclass(frozen=True, slots=True)
class Judgement:
    model: str
    precision: str
    kernel: str
    source: Source
    note: str
    text: Text
    found: Findings
    judged: tuple[Verdict, ...]

    @property
    def failed(self) -> list[Verdict]:
        return [each for each in self.judged if not each.holds]


def judge(options: QualityOptions) -> Judgement:
    """Measure the candidate against float32 of the same weights, and hold it against its limits.

    Raises:
        ConfigurationError: a model, text or limits file that cannot be used, or a text that is too short.
    """
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    limits = load_limits(options.weights, options.limits)
    text = default_text() if options.text is None else read_text(options.text)
    path = options.model or default_model_path()
    tokenizer = Tokenizer.from_path(path)
    reference = load_decoder(path, Dials("float32", kernel="reference"))
    max_context = min(options.max_context, reference.config.max_positions)
    material = Material(tokenizer.encode(text.content), tokenizer.encode, options.max_tokens, max_context)
    dials = Dials(options.weights, None if options.kv == "model" else options.kv, options.kernel)
    candidate = _candidate(path, dials, requantise=options.requantise)
    found = measure(reference.decoder, candidate, material)
    origin = source(path)
    return Judgement(
        model=path.name,
        precision=dials.precision,
        kernel="C++ step" if isinstance(candidate, CpuDecoder) else "torch reference",
        source=origin,
        note=_note(origin, options),
        text=text,
        found=found,
        judged=tuple(verdicts(found, limits)),
    )


def run_quality(options: QualityOptions, plot_path: Path | None, json_path: Path | None, console: Console) -> bool:
    """Judge, print, and write plot and JSON where asked for; whether every limit holds."""
    made = judge(options)
    show(made, console)
    if json_path is not None:
        json_path.write_text(to_json(made))
    if plot_path is not None:
        plot(made.found, made.judged, f"headrace quality, {made.model}, {made.precision}, {made.kernel}", plot_path)
    return not made.failed


def to_json(made: Judgement) -> str:
    """The judgement as JSON; a number that is none, or not finite, is null."""
    fields = {
        "model": made.model,
        "precision": made.precision,
        "kernel": made.kernel,
        "source": {**asdict(made.source), "statement": made.source.describe(), "note": made.note},
        "text": {"name": made.text.name, "sha256": made.text.sha256},
        "failed": [each.name for each in made.failed],
        "limits": [{**asdict(each), "holds": each.holds} for each in made.judged],
        **asdict(made.found),
    }
    return json.dumps(_finite(fields), indent=1) + "\n"


def show(made: Judgement, console: Console) -> None:
    for line in _lines(made):
        console.print(line, soft_wrap=True, markup=False, highlight=False)
    table = Table("", "value", "limit")
    for each in made.judged:
        value = "not measured" if each.value is None else f"{each.value:.4g}"
        limit = f"{'>=' if each.is_minimum else '<='} {each.limit:g}"
        table.add_row(each.name, value, limit if each.holds else f"{limit}  FAILED")
    console.print(table)
    for each in made.failed:
        console.print(f"FAILED: {each}", soft_wrap=True, markup=False, highlight=False)


def _lines(made: Judgement) -> Iterator[str]:
    tokens, needles = made.found.tokens, made.found.needles
    yield f"{made.model}: {made.precision} by the {made.kernel}, against float32 of the same weights"
    yield made.source.describe() + (f"; {made.note}" if made.note else "")
    yield (
        f"text: {made.text.name}, sha256 {made.text.sha256[:16]}, {tokens.num_tokens} tokens judged in "
        f"{tokens.num_sequences} sequences"
    )
    yield (
        f"NLL {tokens.reference_nll:.4f} -> {tokens.reference_nll * (1 + tokens.nll_change):.4f} nats "
        f"({tokens.nll_change:+.2%}); by token occurrences {_changes(tokens.by_rarity)}; "
        f"by position {_changes(tokens.by_position)}"
    )
    yield (
        f"KL by percentile: {', '.join(f'{name} {kl:.4f}' for name, kl in tokens.kl_percentiles.items())}, "
        f"max {tokens.max_kl:.3f} nats"
    )
    yield f"needles: the reference recalls {len(needles.recalled)} of {len(needles.cases)}, only these are judged"
    yield f"greedy: {made.found.greedy.num_tokens} tokens each, the same for {sorted(made.found.greedy.lengths)}"


def _candidate(path: Path, dials: Dials, *, requantise: bool) -> AnyDecoder:
    if not requantise:
        return load_decoder(path, dials).decoder
    if dials.weights != "int4":
        raise ConfigurationError(f"--requantise is for int4 weights, not for {dials.weights}")
    model = load_quantised_model(path, Scheme(4, requantise=True), default_cache_folder())
    return make_decoder(model.config, {**model.weights, **model.linears}, dials)


def _note(origin: Source, options: QualityOptions) -> str:
    """What int4 figures on a source of 4 bits are worth."""
    if options.weights != "int4" or not origin.is_floor:
        return ""
    if options.requantise:
        return "its weights are put onto another grid of 4 bits here"
    return "its own codes are taken as they are, which says nothing about int4 of other weights: see --requantise"


def _changes(buckets: tuple[Bucket, ...]) -> str:
    return ", ".join(f"{each.name}: {each.change:+.3f}±{each.error:.3f}" for each in buckets)


def _finite(value: object) -> object:
    if isinstance(value, dict):
        return {key: _finite(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
