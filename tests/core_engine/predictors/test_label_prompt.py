"""The question to the language model's labels: what is written, in which tokens, and which of them never change."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from core_engine.contracts import HeadKind, Normalise, Rung
from core_engine.errors import ConfigurationError, InvalidRequest
from core_engine.llm.gguf_reader import default_model_path
from core_engine.llm.tokenizer import Tokenizer
from core_engine.predictors.declaration import FeatureUse, InputField, InputKind, LabelText, LMScore, Predictor
from core_engine.predictors.label_prompt import LabelPrompts
from core_engine.predictors.prompt import question
from core_engine.predictors.soundness import check_declaration
from tests.core_engine.predictors.doubles import MEAN_DELAY, delay_predictor

PROMPT = "A flight from {origin} at {departure:%H:%M}, seats {seats:d}, mean delay {route.mean_delay:.1f}. Late?"
LABELS = (LabelText(name="late", text="Yes"), LabelText(name="in_time", text="No"))
INPUTS: dict[str, Any] = {
    "origin": "JFK",
    "departure": datetime(2013, 11, 5, 17, 30, tzinfo=timezone(timedelta(hours=-5))),
    "seats": 180,
}


def predictor(**changes: Any) -> Predictor:
    model = {"system_prompt": "One word.", "prompt": PROMPT, "labels": LABELS}
    of_model = {name: changes.pop(name) for name in list(changes) if name in {*model, "normalise"}}
    declared: dict[str, Any] = {
        "ladder": (Rung.MODEL, Rung.PRIOR),
        "student": None,
        "model": LMScore(**(model | of_model)),
    }
    return delay_predictor(Path(changes.pop("folder")), **(declared | changes))


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_gguf(default_model_path())


@pytest.fixture
def declared(tmp_path: Path) -> Predictor:
    return predictor(folder=tmp_path)


def text(declared: Predictor, inputs: dict[str, Any], delay: float | None = 12.34) -> str:
    system, user = question(declared, inputs, {MEAN_DELAY: delay})
    assert system == {"role": "system", "content": "One word."}
    return user["content"]


class TestText:
    def test_inputs_and_features_are_written_as_the_prompt_formats_them(self, declared: Predictor) -> None:
        assert text(declared, INPUTS) == "A flight from JFK at 17:30, seats 180, mean delay 12.3. Late?"

    def test_what_is_absent_is_unknown_whatever_its_format(self, declared: Predictor) -> None:
        found = text(declared, {**INPUTS, "seats": None, "departure": None}, None)
        assert found == "A flight from JFK at unknown, seats unknown, mean delay unknown. Late?"

    def test_a_value_cannot_write_a_field_of_its_own(self, declared: Predictor) -> None:
        assert "from {seats} at" in text(declared, {**INPUTS, "origin": "{seats}"})

    def test_a_value_of_another_kind_than_the_prompt_formats_is_refused(self, declared: Predictor) -> None:
        with pytest.raises(InvalidRequest, match="cannot be filled in"):
            question(declared, INPUTS, {MEAN_DELAY: "much"})


class TestTokens:
    def test_the_prompt_is_the_models_own_conversation_and_the_labels_its_tokens(
        self, declared: Predictor, tokenizer: Tokenizer
    ) -> None:
        asked = LabelPrompts(tokenizer).ask(declared, INPUTS, {MEAN_DELAY: 1.0})
        assert list(asked.token_ids) == tokenizer.apply_chat_template(question(declared, INPUTS, {MEAN_DELAY: 1.0}))
        assert asked.head.kind is HeadKind.SCORE
        assert asked.head.normalise is Normalise.LABELS
        assert [tokenizer.decode(label) for label in asked.head.labels] == ["Yes", "No"]

    @given(origin=st.text(max_size=6), delay=st.one_of(st.none(), st.floats(-1e6, 1e6)))
    def test_template_tokens_are_the_same_in_every_prompt_and_lie_before_the_first_value(
        self, tmp_path_factory: pytest.TempPathFactory, tokenizer: Tokenizer, origin: str, delay: float | None
    ) -> None:
        declared = predictor(folder=tmp_path_factory.getbasetemp())
        prompts = LabelPrompts(tokenizer)
        usual = prompts.ask(declared, INPUTS, {MEAN_DELAY: 1.0})
        asked = prompts.ask(declared, {**INPUTS, "origin": origin}, {MEAN_DELAY: delay})
        constant = len(b"".join(tokenizer.token_bytes[i] for i in asked.token_ids[: asked.template_tokens]))
        whole = b"".join(tokenizer.token_bytes[i] for i in asked.token_ids)
        assert constant <= whole.index(b"A flight from ") + len(b"A flight from ")
        assert usual.token_ids[: asked.template_tokens] == asked.token_ids[: asked.template_tokens]
        assert asked.template_tokens >= usual.template_tokens - 1 > 10  # the last one may melt into the value

    def test_a_prompt_without_values_is_template_to_its_end(self, tmp_path: Path, tokenizer: Tokenizer) -> None:
        asked = LabelPrompts(tokenizer).ask(predictor(folder=tmp_path, prompt="Late?"), INPUTS, {MEAN_DELAY: 1.0})
        assert asked.template_tokens == len(asked.token_ids)

    def test_another_declaration_under_the_same_id_is_asked_as_it_is(
        self, tmp_path: Path, declared: Predictor, tokenizer: Tokenizer
    ) -> None:
        prompts = LabelPrompts(tokenizer)
        first = prompts.ask(declared, INPUTS, {MEAN_DELAY: 1.0})
        other = predictor(folder=tmp_path, labels=LABELS[::-1], normalise=Normalise.VOCAB)
        second = prompts.ask(other, INPUTS, {MEAN_DELAY: 1.0})
        assert second.head.labels == first.head.labels[::-1]
        assert second.head.normalise is Normalise.VOCAB
        assert prompts.ask(declared, INPUTS, {MEAN_DELAY: 1.0}) == first


class TestDeclaration:
    def test_a_sound_one_passes_and_is_the_same_after_a_round_trip(self, declared: Predictor) -> None:
        check_declaration(declared)
        assert msgspec.json.decode(declared.to_json(), type=Predictor) == declared

    def test_no_columns_are_needed_where_only_the_model_answers(self, tmp_path: Path) -> None:
        check_declaration(predictor(folder=tmp_path, ladder=(Rung.MODEL,), prior=None, columns=()))

    @pytest.mark.parametrize(
        ("changes", "fault"),
        [
            ({"prompt": "{origin"}, "no format string"),
            ({"prompt": "{nobody}"}, "'nobody', which is neither an input nor a feature"),
            ({"prompt": "{route.other}"}, "'route.other', which is neither an input nor a feature"),
            ({"prompt": "{origin.__class__}"}, "which is neither an input nor a feature"),
            ({"label": "punctual"}, "its label 'punctual' must be one of those that it scores"),
            ({"labels": LABELS[:1]}, "two labels or more"),
            ({"labels": (*LABELS, LabelText(name="late", text="Maybe"))}, "distinct names"),
            ({"labels": (*LABELS, LabelText(name="other", text=""))}, "non-empty texts"),
            ({"labels": (*LABELS, LabelText(name="other", text="Note"))}, "label text 'No' begins 'Note'"),
            ({"labels": (*LABELS, LabelText(name="other", text="Yes"))}, "label text 'Yes' begins 'Yes'"),
        ],
    )
    def test_one_that_does_not_hang_together_is_refused(
        self, tmp_path: Path, changes: dict[str, Any], fault: str
    ) -> None:
        with pytest.raises(ConfigurationError, match=fault):
            check_declaration(predictor(folder=tmp_path, **changes))

    def test_an_input_that_is_also_a_feature_view_cannot_be_written(self, tmp_path: Path) -> None:
        inputs = (*predictor(folder=tmp_path).inputs, InputField(name="route", kind=InputKind.STRING))
        made = predictor(folder=tmp_path, inputs=inputs, prompt="{route} {route.mean_delay}")
        with pytest.raises(ConfigurationError, match="'route', which is an input and a feature view"):
            check_declaration(made)
        assert FeatureUse(ref=MEAN_DELAY) in made.features


def test_timestamps_are_written_in_their_own_offset(declared: Predictor) -> None:
    utc = {**INPUTS, "departure": datetime(2013, 11, 5, 22, 30, tzinfo=UTC)}
    assert "at 17:30" in text(declared, INPUTS)
    assert "at 22:30" in text(declared, utc)
