"""The bare service scores what the engine's scorer would, from the blobs in Redis."""

from __future__ import annotations

from pathlib import Path

import httpx
import msgspec
import numpy as np
import pytest
import torch
from redis.asyncio import Redis

from benchmarks.door.bare_server import BareConfig, BareView, create_app
from benchmarks.features.valkey_server import HOST, valkey
from core_engine.predictors.declaration import Column, ColumnKind, InputField, InputKind, Predictor, TorchScorer
from core_engine.scoring.torch_scorer import TabularMLP, TabularSpec, TorchScorerModel, save_scorer
from headrace.flights import PREDICT

COLUMNS = (
    Column(name="hour", kind=ColumnKind.HOUR, source="scheduled_departure"),
    Column(name="delay", kind=ColumnKind.NUMERIC, source="route_daily.mean_delay"),
    Column(name="share", kind=ColumnKind.NUMERIC, source="route_daily.late_share"),
)
VIEW = BareView("route_daily", ("origin", "dest"), ("route_daily.mean_delay", "route_daily.late_share"))
INPUTS = {"carrier": "UA", "origin": "EWR", "dest": "LAX", "scheduled_departure": "2026-12-01T09:30:00-05:00"}


async def test_the_score_is_the_scorers_own(tmp_path: Path) -> None:
    torch.manual_seed(0)
    module = TabularMLP(TabularSpec.of(COLUMNS))
    predictor = Predictor(
        name="delay_risk",
        version=1,
        owner="tests",
        model=TorchScorer(artifact=save_scorer(tmp_path / "s.safetensors", module)),
        inputs=tuple(InputField(name=name, kind=InputKind.STRING) for name in INPUTS),
        columns=COLUMNS,
    )
    with valkey() as port:
        url = f"redis://{HOST}:{port}/0"
        async with Redis.from_url(url) as client:
            await client.set(VIEW.key(INPUTS), msgspec.msgpack.encode([12, None]))
            transport = httpx.ASGITransport(create_app(BareConfig(url, predictor, (VIEW,)), client))
            async with httpx.AsyncClient(transport=transport, base_url="http://bare") as http:
                reply = (await http.post(PREDICT, json={"inputs": INPUTS, "budget_ms": 45})).raise_for_status().json()
    row = np.array([[9.5, 12.0, np.nan]], dtype=np.float32)
    (expected,) = TorchScorerModel(module, torch.device("cpu")).score(row)
    assert reply["value"] == pytest.approx(float(expected))
    assert reply["rung"] == "model"


def test_an_entitys_key_is_made_of_its_input_fields() -> None:
    assert VIEW.key(INPUTS) == "bare:route_daily:EWR-LAX"
