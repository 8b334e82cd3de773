"""What a team would write without us: FastAPI, one Redis pipeline, the same scorer in the same process. No deadline, no
ladder, no batching, no metrics, no facts.

`python -m benchmarks.door.bare_server PORT CONFIG` serves `delay_risk` from features that the stand has put into Redis
as one msgpack blob per view and entity, which is the least that a read can cost.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec
import torch
import uvicorn
from fastapi import FastAPI
from pydantic import BaseModel
from redis.asyncio import Redis

from core_engine.contracts import entity_key
from core_engine.predictors.declaration import Predictor, TorchScorer
from core_engine.scoring.encoding import RowEncoder
from core_engine.scoring.torch_scorer import load_scorer
from headrace.flights import PREDICT

HOST = "127.0.0.1"


class BareView(msgspec.Struct, frozen=True):
    """One GET of a request: the key's input fields, and what the blob's values are."""

    name: str
    fields: tuple[str, ...]
    refs: tuple[str, ...]

    def key(self, inputs: Mapping[str, Any]) -> str:
        return f"bare:{self.name}:{entity_key(*(inputs[field] for field in self.fields))}"


class BareConfig(msgspec.Struct, frozen=True):
    redis_url: str
    predictor: Predictor
    views: tuple[BareView, ...]


class Flight(BaseModel):
    carrier: str
    origin: str
    dest: str
    scheduled_departure: datetime
    distance: float | None = None


class Body(BaseModel):
    inputs: Flight


def create_app(config: BareConfig, redis: Redis) -> FastAPI:
    app = FastAPI()
    model = config.predictor.model
    assert isinstance(model, TorchScorer)
    scorer, encoder = load_scorer(model.artifact.path, model.artifact.sha256), RowEncoder(config.predictor.columns)
    decode = msgspec.msgpack.Decoder(list[float | None]).decode

    @app.post(PREDICT)
    async def predict(body: Body) -> dict[str, Any]:
        inputs, features = body.inputs.model_dump(), dict[str, Any]()
        pipeline = redis.pipeline(transaction=False)
        for view in config.views:
            pipeline.get(view.key(inputs))
        for view, blob in zip(config.views, await pipeline.execute(), strict=True):
            features.update(zip(view.refs, decode(blob), strict=True))
        value = scorer.score(encoder.encode(inputs, features)[None])[0]
        return {"value": float(value), "rung": "model", "usage": {"batch_size": 1}}

    return app


def main() -> None:
    port, config = int(sys.argv[1]), msgspec.json.decode(Path(sys.argv[2]).read_bytes(), type=BareConfig)
    torch.set_num_threads(1)  # rows of twenty numbers: a second thread only waits
    app = create_app(config, Redis.from_url(config.redis_url))
    uvicorn.run(app, host=HOST, port=port, loop="uvloop", http="httptools", log_level="warning")


if __name__ == "__main__":
    main()
