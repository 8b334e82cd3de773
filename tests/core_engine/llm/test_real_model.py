"""The real model, SmolLM2-135M-Instruct, against transformers' own reading of the same file."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

import pytest
import torch
from transformers import AutoModelForCausalLM

from core_engine.contracts import Deadline, GenerateRequest, Pool, SamplingParams
from core_engine.llm.engine import Engine
from core_engine.llm.gguf_reader import default_model_path
from core_engine.llm.scheduler import Scheduled
from core_engine.llm.sequence import Sequence
from core_engine.llm.step_rows import step_rows
from core_engine.llm.tokenizer import Tokenizer
from core_engine.settings import EngineSettings
from headrace.engine import build_engine
from tests.core_engine.llm.tiny import run_all

pytestmark = pytest.mark.weights
NUM_NEW = 16
# The bound on what bfloat16 may turn over, in logits: its spacing at 16 to 32, where this model's top logits lie.
MARGIN = 0.125
TEXT = (
    "The flight from New York to Chicago leaves at nine in the morning, and the weather over the lakes is clear. "
    "Passengers are asked to be at the gate half an hour before departure. Prices for the return journey depend on "
    "the day of the week: Tuesdays are cheapest, Fridays are not. In 2013 about 336,776 flights left the three "
    "airports of the city, and one in five arrived more than fifteen minutes late. def delay(minutes): return minutes. "
)


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_gguf(default_model_path())


@pytest.fixture(scope="module")
def reference() -> Any:
    path = default_model_path()
    return AutoModelForCausalLM.from_pretrained(str(path.parent), gguf_file=path.name, dtype=torch.float32).eval()


def engine_in(weights: Literal["float32", "bfloat16"]) -> Engine:
    return build_engine(EngineSettings(weights=weights, kv_cache_bytes=256 << 20))[0]


def prompts(tokenizer: Tokenizer) -> list[tuple[int, ...]]:
    """20 of mixed length: chats, bare text, code, other scripts, one token, and a few hundred."""
    bare = ["The", "Once upon a time", "def fibonacci(n):", "日本の首都は", "1, 2, 3, 4,", "naïve café — “quotes” 🙂"]
    asked = ["What is the capital of France?", "Write one sentence about rain.", "2+2?", "Name three airlines."]
    long = [TEXT[:n] for n in (60, 150, 300, 500)] + [TEXT * 2, TEXT * 3]
    chats = [tokenizer.apply_chat_template([{"role": "user", "content": text}]) for text in asked + long[:4]]
    return [tuple(ids) for ids in [tokenizer.encode(text) for text in bare + long] + chats]


def ask(prompt: tuple[int, ...], pool: Pool = Pool.INTERACTIVE, max_tokens: int = NUM_NEW) -> GenerateRequest:
    sampling = SamplingParams(max_tokens=max_tokens, ignore_eos=True)
    return GenerateRequest(f"{pool}-{hash(prompt)}", prompt, sampling, Deadline.never(), pool)


def test_greedy_output_in_fp32_equals_transformers_alone_and_all_together(tokenizer: Tokenizer, reference: Any) -> None:
    engine, asked = engine_in("float32"), prompts(tokenizer)
    assert len(asked) == 20
    pools = [Pool.INTERACTIVE, Pool.BULK]
    together = run_all(engine, [ask(p, pools[i % 2]) for i, p in enumerate(asked)])
    for i, prompt in enumerate(asked):
        ids = torch.tensor([prompt])
        with torch.inference_mode():
            theirs = reference.generate(
                ids, attention_mask=torch.ones_like(ids), max_new_tokens=NUM_NEW, do_sample=False, eos_token_id=None
            )
        expected = theirs[0, len(prompt) :].tolist()
        assert together[ask(prompt, pools[i % 2]).attempt_id] == expected, tokenizer.decode(prompt)[:60]
        assert run_all(engine, [ask(prompt)]).popitem()[1] == expected, tokenizer.decode(prompt)[:60]


def test_bfloat16_weights_give_the_same_argmax_wherever_the_fp32_margin_is_clear(
    tokenizer: Tokenizer, reference: Any
) -> None:
    engine = engine_in("bfloat16")
    asked = ["Explain in three sentences why flights are late in winter.", "Write a notice about a gate change."]
    chats = [tuple(tokenizer.apply_chat_template([{"role": "user", "content": text}])) for text in asked]
    answered = run_all(engine, [ask(chat, max_tokens=120) for chat in chats])
    texts = [tokenizer.encode(TEXT)] + [[*chat, *answered[ask(chat).attempt_id]] for chat in chats]
    margins, same = [], []
    for ids in texts:
        with torch.inference_mode():
            theirs = reference(torch.tensor([ids])).logits[0]
        top = theirs.topk(2, dim=-1).values
        margins.append(top[:, 0] - top[:, 1])
        same.append(teacher_forced(engine, ids).argmax(-1) == theirs.argmax(-1))
    clear = torch.cat(margins) > MARGIN
    assert len(clear) > 350
    assert clear.float().mean() >= 0.9
    assert torch.cat(same)[clear].all()


def teacher_forced(engine: Engine, ids: list[int]) -> torch.Tensor:
    """Logits at every position of `ids`, [num_tokens, vocab], through the paged cache in chunks of 64."""
    sequence = Sequence(ask(tuple(ids)), arrival_s=0.0)
    blocks = engine.scheduler.blocks
    sequence.block_table = [blocks.take(sequence.pool) for _ in range(blocks.blocks_for(len(ids)))]
    rows: list[torch.Tensor] = []
    for start in range(0, len(ids), 64):
        num_tokens = min(64, len(ids) - start)
        every = replace(step_rows([Scheduled(sequence, num_tokens)]), output_rows=list(range(num_tokens)))
        with torch.inference_mode():
            decoder = engine.runner.decoder
            rows.append(decoder.logits(decoder.forward(every, engine.runner.cache)))
        sequence.num_computed_tokens += num_tokens
    return torch.cat(rows)
