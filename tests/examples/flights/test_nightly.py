"""The nightly jobs' input: real routes and flights as known at one instant, ready for the batch door."""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path

import msgspec

from batch.reader import read_rows
from core_engine.contracts import Rung, Scalar
from core_engine.predictors.declaration import LMGenerate, Objective, Predictor
from core_engine.predictors.inputs import check_inputs, lookup_key
from core_engine.predictors.prompt import conversation
from core_engine.predictors.soundness import check_declaration
from examples.flights.nightly import brief_rows, risk_rows, write_rows
from examples.flights.predictors import route_brief
from examples.flights.prepare import Prepared
from tests.examples.flights.test_serving import START, whole_year

NOW = START + timedelta(hours=12)
BRIEF = route_brief()
__all__ = ("whole_year",)  # a fixture


def test_the_brief_is_a_bulk_job_under_a_key_of_its_own() -> None:
    check_declaration(BRIEF)
    assert msgspec.json.decode(BRIEF.to_json(), type=Predictor) == BRIEF
    assert BRIEF.objective is Objective.THROUGHPUT
    assert BRIEF.ladder == (Rung.MODEL,)
    assert isinstance(BRIEF.model, LMGenerate)
    assert BRIEF.model.max_tokens <= 60


def test_the_busiest_routes_have_their_facts_and_a_short_prompt(whole_year: Prepared) -> None:
    rows = brief_rows(whole_year, NOW)
    assert len(rows) >= 40
    counts = [row["flights"] for row in rows]
    assert counts == sorted(counts, key=lambda count: -int(str(count)))
    for row in rows:
        inputs = check_inputs(BRIEF, row)
        asked = conversation(BRIEF, inputs)[1]["content"]
        assert f"{row['flights']} flights went from {row['origin']} to {row['dest']}" in asked
        assert len(asked) < 250
    assert len({lookup_key(BRIEF, check_inputs(BRIEF, row)) for row in rows}) == len(rows)


def test_facts_are_those_known_at_the_instant(whole_year: Prepared) -> None:
    today, tomorrow = brief_rows(whole_year, NOW, 10), brief_rows(whole_year, NOW + timedelta(days=1), 10)
    assert today != tomorrow
    assert brief_rows(whole_year, NOW, 10) == today


def test_every_flight_next_due_has_a_key_that_its_request_makes(whole_year: Prepared) -> None:
    predictor, rows = whole_year.delay_risk, risk_rows(whole_year, NOW, 300)
    keys = [lookup_key(predictor, check_inputs(predictor, row)) for row in rows]
    assert 290 <= len(rows) <= 300
    assert len(set(keys)) == len(keys)
    carrier, origin, dest, departure = keys[0].split("-")
    assert (carrier, origin, dest) == (rows[0]["carrier"], rows[0]["origin"], rows[0]["dest"])
    assert datetime.strptime(departure, "%Y%m%dT%H%M%S%z") == rows[0]["scheduled_departure"]


def test_what_is_written_is_what_the_batch_door_reads(whole_year: Prepared, tmp_path: Path) -> None:
    rows = risk_rows(whole_year, NOW, 5)
    path = write_rows(tmp_path / "new" / "risk.jsonl", rows)
    read = [row.inputs for page in read_rows(path) for row in page]
    taken: list[dict[str, Scalar]] = [check_inputs(whole_year.delay_risk, row) for row in read]
    assert taken == [check_inputs(whole_year.delay_risk, row) for row in rows]
    assert write_rows(path, rows).read_bytes() == path.read_bytes()
