"""How well the language model ranks flights by its own word for them (`route_risk`), beside the base rate's ranking.

The same held-out flights for both, evenly over October to December. `python -m benchmarks.flights.route_risk` asks
400 of them, with `--quick` 100; the flights are prepared first where no earlier run has left them.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime

import msgspec
import pyarrow.parquet

from benchmarks.report import Row, options, publish
from core_engine.contracts import Deadline, GenerateRequest, Pool, SamplingParams
from core_engine.llm.engine import Engine
from core_engine.llm.tokenizer import Tokenizer
from core_engine.predictors.declaration import Predictor
from core_engine.predictors.label_prompt import LabelPrompts
from core_engine.scoring.encoding import RowEncoder
from core_engine.scoring.prior import PriorTable
from core_engine.settings import EngineSettings, Settings
from examples.flights.prepare import prepare
from examples.flights.quality import RungQuality
from examples.flights.route_risk import HeldOut, held_out
from headrace.engine import build_engine
from headrace.wheels import model_file

NUM_FLIGHTS, NUM_QUICK = 400, 100
IN_FLIGHT = 8  # at once: a step's tokens hold no more of these prompts


def requests(predictor: Predictor, flights: HeldOut, tokenizer: Tokenizer) -> Iterator[GenerateRequest]:
    prompts = LabelPrompts(tokenizer)
    for index, (inputs, features) in enumerate(flights.asked):
        asked = prompts.ask(predictor, inputs, features)
        yield GenerateRequest(
            attempt_id=f"{index}",
            prompt_token_ids=asked.token_ids,
            sampling=SamplingParams(),
            deadline=Deadline.never(),
            pool=Pool.BULK,
            predictor=predictor.name,
            version=predictor.version,
            template_tokens=asked.template_tokens,
            head=asked.head,
        )


def ask(engine: Engine, asked: Sequence[GenerateRequest]) -> list[float]:
    """The first label's probability for each request, in order."""
    values: dict[str, float] = {}
    waiting = list(reversed(asked))
    while len(values) < len(asked):
        while waiting and len(asked) - len(waiting) - len(values) < IN_FLIGHT:
            engine.add(waiting.pop())
        for event in engine.step():
            if event.values is None:
                raise RuntimeError(f"request {event.sequence.id} ended without a score: {event.finish_reason}")
            values[event.sequence.id] = event.values[0]
    return [values[each.attempt_id] for each in asked]


def prior_rates(predictor: Predictor, flights: HeldOut) -> list[float]:
    assert predictor.prior is not None
    encoder, table = RowEncoder(predictor.columns), PriorTable(predictor.prior, predictor.columns)
    return [table.rate(encoder.encode(inputs, features)) for inputs, features in flights.asked]


def row(rung: str, quality: RungQuality) -> Row:
    return {"rung": rung, **{name: round(value, 3) for name, value in msgspec.structs.asdict(quality).items()}}


def main() -> None:
    chosen = options(__doc__ or "")
    settings = Settings()
    prepared = prepare(settings.state_dir / "flights", datetime.now(UTC))
    flights = pyarrow.parquet.read_table(prepared.flights_path)
    sample = held_out(flights, prepared.views, NUM_QUICK if chosen.quick else NUM_FLIGHTS)
    engine, _ = build_engine(EngineSettings())
    asked = list(requests(prepared.route_risk, sample, Tokenizer.from_path(model_file(settings.engine))))
    start = time.monotonic()
    model = sample.quality_of(ask(engine, asked))
    elapsed_s = time.monotonic() - start
    prior = sample.quality_of(prior_rates(prepared.route_risk, sample))
    num_tokens = sum(len(each.prompt_token_ids) for each in asked) / len(asked)
    title = f"route_risk: {len(asked)} held-out flights, {num_tokens:.0f} prompt tokens, {IN_FLIGHT} at once"
    headline = {
        "route_risk_auc": model.auc,
        "route_risk_prior_auc": prior.auc,
        "route_risk_flights_per_s": len(asked) / elapsed_s,
    }
    publish(title, [row("model", model), row("prior", prior)], headline, chosen.json)


if __name__ == "__main__":
    main()
