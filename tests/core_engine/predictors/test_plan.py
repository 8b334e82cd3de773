from __future__ import annotations

from pathlib import Path as FilePath
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core_engine.contracts import Path, Pool, Rung
from core_engine.predictors.declaration import (
    Artifact,
    FeatureUse,
    InputField,
    InputKind,
    LMGenerate,
    Objective,
    Precomputed,
    Predictor,
    TorchScorer,
)
from core_engine.predictors.plan import NIGHT_S, Plan, duration, plan, quoted
from core_engine.predictors.soundness import check_declaration
from tests.core_engine.predictors.doubles import delay_predictor, notice_predictor

NIGHTLY = Precomputed(key=("origin", "dest"), max_age_s=25 * 3600.0)
HOURLY = Precomputed(key=("origin", "dest"), max_age_s=3600.0)
LOOKS_UP = (Rung.MODEL, Rung.PRECOMPUTED, Rung.PRIOR)


@pytest.fixture
def folder(tmp_path: FilePath) -> FilePath:
    return tmp_path


def planned(folder: FilePath, **declared: Any) -> Plan:
    """The plan of a scorer that may be registered."""
    predictor = delay_predictor(folder, **declared)
    check_declaration(predictor)
    return plan(predictor)


def brief(**declared: Any) -> Predictor:
    """A predictor that writes about a row."""
    fields = tuple(InputField(name=name, kind=InputKind.STRING) for name in NIGHTLY.key)
    made = notice_predictor(
        model=LMGenerate(system_prompt="Be brief.", prompt="{origin} to {dest}"), inputs=fields, **declared
    )
    check_declaration(made)
    return made


def test_an_answer_that_may_have_no_age_is_computed_online(folder: FilePath) -> None:
    assert planned(folder, budget_ms=50.0) == Plan(
        Path.ONLINE,
        (),
        "An answer may not be older than its question, so it is computed from the request itself within 50 ms.",
    )


def test_a_precomputed_rung_means_batch_beside_online(folder: FilePath) -> None:
    made = planned(folder, precomputed=NIGHTLY, ladder=LOOKS_UP)
    assert (made.mode, made.also) == (Path.ONLINE, (Path.BATCH,))
    assert made.why.endswith("; batch beside it, for its precomputed rung: answers of at most 25 h.")


def test_what_is_precomputed_without_a_rung_is_for_look_up(folder: FilePath) -> None:
    made = planned(folder, precomputed=HOURLY)
    assert (made.mode, made.also) == (Path.ONLINE, (Path.BATCH,))
    assert "batch beside it, for look-up: answers of at most 1 h." in made.why


def test_an_answer_that_may_be_as_old_as_a_night_is_precomputed(folder: FilePath) -> None:
    made = planned(folder, freshness_s=25 * 3600.0, precomputed=NIGHTLY)
    why = "An answer may be 25 h old, so a nightly job computes it, to be looked up by origin, dest."
    assert made == Plan(Path.BATCH, (), why)


def test_a_batch_predictor_whose_ladder_also_asks_the_model_answers_online_too(folder: FilePath) -> None:
    ladder = (Rung.PRECOMPUTED, Rung.MODEL, Rung.PRIOR)
    made = planned(folder, freshness_s=NIGHT_S, precomputed=NIGHTLY, ladder=ladder)
    assert (made.mode, made.also) == (Path.BATCH, (Path.ONLINE,))
    assert made.why.endswith("; online beside it, where the ladder also asks the model.")


@pytest.mark.parametrize("precomputed", [None, HOURLY], ids=["no key", "a key whose answers are soon too old"])
def test_without_a_place_for_a_nights_answers_they_are_computed_when_asked(
    folder: FilePath, precomputed: Precomputed | None
) -> None:
    made = planned(folder, freshness_s=NIGHT_S, precomputed=precomputed)
    assert made.mode is Path.ONLINE
    assert "may be 24 h old, but no key is declared under which one stays stored for a night" in made.why


def test_an_answer_that_must_reflect_an_event_is_scored_by_the_stream(folder: FilePath) -> None:
    why = "An answer must reflect an event within 1 min of it, so each event is scored as it comes."
    assert planned(folder, freshness_s=60.0) == Plan(Path.STREAM, (), why)


def test_a_stream_predictor_may_have_a_precomputed_rung(folder: FilePath) -> None:
    made = planned(folder, freshness_s=60.0, precomputed=HOURLY, ladder=LOOKS_UP)
    assert (made.mode, made.also) == (Path.STREAM, (Path.BATCH,))


@pytest.mark.parametrize("freshness_s", [0.0, 60.0, NIGHT_S])
def test_a_model_that_is_asked_in_conversations_only_is_online(freshness_s: float) -> None:
    made = plan(notice_predictor(freshness_s=freshness_s))
    assert (made.mode, made.also) == (Path.ONLINE, ())
    assert made.why == "It is asked in conversations only, so it is written from their messages within 30 s."


def test_texts_about_rows_are_written_at_night_where_they_may_be_that_old() -> None:
    made = plan(brief(freshness_s=NIGHT_S, precomputed=NIGHTLY, objective=Objective.THROUGHPUT))
    assert (made.mode, made.also) == (Path.BATCH, ())


def test_no_stream_writes_texts() -> None:
    made = plan(brief(freshness_s=60.0, objective=Objective.THROUGHPUT))
    assert made.mode is Path.ONLINE
    assert made.why.endswith("no stream writes texts, so it is written when asked within 30 s in the bulk pool.")


def test_features_that_a_stream_feeds_are_named_and_do_not_change_the_mode(folder: FilePath) -> None:
    features = tuple(FeatureUse(ref=ref) for ref in ("route.mean_delay", "airport.delay", "airport@dest.delay"))
    predictor = delay_predictor(folder, features=features, precomputed=NIGHTLY, ladder=LOOKS_UP)
    made, plain = plan(predictor, {"airport", "elsewhere"}), plan(predictor)
    assert (made.mode, made.also) == (plain.mode, plain.also)
    assert ", reading airport as the stream has left it by then; batch beside it" in made.why
    assert "elsewhere" not in made.why
    assert "reading" not in plain.why


def test_the_objective_decides_the_pool_and_the_figures(folder: FilePath) -> None:
    fast = delay_predictor(folder, budget_ms=50.0)
    many = delay_predictor(folder, objective=Objective.THROUGHPUT)
    assert (fast.pool, quoted(fast)) == (Pool.INTERACTIVE, "latency: share within 50 ms, p50, p99")
    assert (many.pool, quoted(many)) == (Pool.BULK, "throughput: rows/s, device seconds per 1,000 rows")


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0, "0 ms"),
        (0.05, "50 ms"),
        (1.0, "1 s"),
        (60.0, "1 min"),
        (90.0, "90 s"),
        (3600.0, "1 h"),
        (90_000.0, "25 h"),
    ],
)
def test_a_duration_is_said_in_the_unit_that_it_fills(seconds: float, text: str) -> None:
    assert duration(seconds) == text


SCORER = TorchScorer(artifact=Artifact(path="/nowhere", sha256="0" * 64))


@given(
    freshness_s=st.floats(0, 1e6),
    max_age_s=st.floats(1, 1e6),
    has_rung=st.booleans(),
    prompt=st.sampled_from([None, "", "{origin}"]),
    objective=st.sampled_from(Objective),
)
def test_every_declaration_has_one_mode_and_one_sentence(
    freshness_s: float, max_age_s: float, has_rung: bool, prompt: str | None, objective: Objective
) -> None:
    predictor = Predictor(
        name="any",
        version=1,
        owner="tests",
        model=SCORER if prompt is None else LMGenerate(system_prompt="", prompt=prompt),
        precomputed=Precomputed(key=("origin",), max_age_s=max_age_s),
        ladder=LOOKS_UP if has_rung else (Rung.MODEL,),
        objective=objective,
        freshness_s=freshness_s,
    )
    made = plan(predictor)
    assert made.mode not in made.also
    assert Path.BATCH in (made.mode, *made.also), "somebody has to store what is precomputed"
    assert (made.mode is Path.BATCH) <= (freshness_s >= NIGHT_S)
    assert (made.mode is Path.STREAM) <= (0 < freshness_s < NIGHT_S and prompt is None)
    assert made.why.endswith(".")
    assert "\n" not in made.why
