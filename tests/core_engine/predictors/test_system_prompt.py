"""Of a prompt, what its predictor's owner wrote and no request can change."""

from __future__ import annotations

from core_engine.llm.gguf_reader import default_model_path
from core_engine.llm.tokenizer import Tokenizer
from core_engine.predictors.declaration import LMGenerate, Predictor
from core_engine.predictors.system_prompt import SystemPrompts

TOKENIZER = Tokenizer.from_gguf(default_model_path())


def writer(system_prompt: str = "Be brief and kind.", version: int = 1) -> Predictor:
    return Predictor(name="notes", version=version, owner="tests", model=LMGenerate(system_prompt=system_prompt))


def prompt(predictor: Predictor, *turns: tuple[str, str]) -> list[int]:
    assert isinstance(predictor.model, LMGenerate)
    own = {"role": "system", "content": predictor.model.system_prompt}
    return TOKENIZER.apply_chat_template([own, *({"role": role, "content": text} for role, text in turns)])


def test_the_system_prompt_is_the_template_and_the_users_words_are_not() -> None:
    asked = prompt(writer(), ("user", "What now?"))
    count = SystemPrompts(TOKENIZER).template_tokens(writer(), asked)
    text = TOKENIZER.decode(asked[:count])
    assert "Be brief and kind." in text
    assert "user" in text
    assert "What" not in text
    assert count < len(asked)


def test_a_conversation_that_begins_otherwise_shares_only_what_it_has_in_common() -> None:
    prompts, usual = SystemPrompts(TOKENIZER), prompt(writer(), ("user", "a"))
    answered = prompt(writer(), ("assistant", "Yes."), ("user", "a"))
    assert 0 < prompts.template_tokens(writer(), answered) <= prompts.template_tokens(writer(), usual)
    assert prompts.template_tokens(writer(), TOKENIZER.encode("something else")) < 3


def test_another_version_has_a_template_of_its_own() -> None:
    prompts, other = SystemPrompts(TOKENIZER), writer("Be long.", version=2)
    short = prompts.template_tokens(writer(), prompt(writer(), ("user", "a")))
    assert prompts.template_tokens(other, prompt(other, ("user", "a"))) < short
