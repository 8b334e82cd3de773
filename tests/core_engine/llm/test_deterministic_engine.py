"""Determinism mode through the whole engine: batches, chunks, cache hits and pre-emptions that the scheduler makes."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable
from typing import Any, Literal

import pytest
import torch

from core_engine.contracts import Deadline, GenerateRequest, Pool, SamplingParams
from core_engine.llm.batch_invariant import BatchInvariantDecoder
from core_engine.llm.cpu_decoder import CpuDecoder
from core_engine.llm.decoder import Decoder
from core_engine.llm.engine import Engine
from core_engine.llm.gguf_reader import default_model_path
from core_engine.llm.model_decoder import AnyDecoder
from core_engine.llm.runner import Runner
from core_engine.llm.sequence import Sequence
from core_engine.llm.tokenizer import Tokenizer
from core_engine.settings import EngineSettings, PoolSettings
from headrace.engine import build_engine
from tests.core_engine.llm.tiny import CONFIG, check, request, tiny_engine, tiny_weights

BLOCK = 4
DIALS: list[dict[str, Any]] = [
    {"weights": "float32"},
    {"weights": "bfloat16", "kernel": "reference"},
    {"weights": "bfloat16"},
    {"weights": "int8"},
    {"weights": "int4", "kv": "int8"},
]
DRAWS = random.Random(11)
PROMPTS = [[DRAWS.randrange(CONFIG.vocab_size) for _ in range(n)] for n in (5, 16, 23, 37, 40, 8)]
NUM_NEW = 12
DTYPES = [torch.float32, torch.bfloat16]


class Watched:
    """An engine whose sampler notes the logits of each sequence's every token."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.logits: dict[str, list[torch.Tensor]] = defaultdict(list)
        sample = engine.runner.sampler.sample

        def noted(logits: torch.Tensor, sequences: list[Sequence], drafts: list[list[int]]) -> Any:
            for row, sequence in zip(logits, sequences, strict=True):
                self.logits[sequence.id].append(row.clone())
            return sample(logits, sequences, drafts)

        engine.runner.sampler.sample = noted  # type: ignore[method-assign, assignment]
        engine.runner.sampler.wants_only_best = lambda sequences: False  # type: ignore[method-assign]

    def run(self, *requests: GenerateRequest) -> list[Sequence]:
        sequences = [self.engine.add(each) for each in requests]
        while self.engine.has_work:
            self.engine.step()
            check(self.engine)
        return sequences

    def of(self, asked: GenerateRequest) -> torch.Tensor:
        """[num_new, vocab]"""
        return torch.stack(self.logits[asked.attempt_id])


def watched(kind: type[Decoder], dtype: torch.dtype, num_blocks: int = 257, **options: Any) -> Watched:
    engine = tiny_engine(num_blocks=num_blocks, block_size=BLOCK, clock=lambda: 0.0, **options)
    weights = {name: tensor.to(dtype) for name, tensor in tiny_weights().items()}
    engine.runner = Runner(kind(CONFIG, weights), num_blocks, BLOCK, eos_token_ids=engine.eos_token_ids)
    return Watched(engine)


def ask(index: int, pool: Pool = Pool.INTERACTIVE, num_new: int = NUM_NEW) -> GenerateRequest:
    return request(PROMPTS[index], num_new, pool)


def alone(kind: type[Decoder], dtype: torch.dtype, index: int, num_new: int = NUM_NEW) -> torch.Tensor:
    engine, asked = watched(kind, dtype, has_prefix_cache=False, max_step_tokens=256), ask(index, num_new=num_new)
    engine.run(asked)
    return engine.of(asked)


def in_chunks(chunk: int) -> Callable[[type[Decoder], torch.dtype], bool]:
    def same(kind: type[Decoder], dtype: torch.dtype) -> bool:
        engine, asked = watched(kind, dtype, max_step_tokens=chunk), ask(3)
        engine.run(asked)
        return torch.equal(engine.of(asked), alone(kind, dtype, 3))

    return same


def in_a_batch(kind: type[Decoder], dtype: torch.dtype) -> bool:
    engine = watched(kind, dtype, max_step_tokens=48)
    requests = [ask(i) for i in (*range(len(PROMPTS)), 1, 2)] + [ask(3, Pool.BULK)]
    assert max(s.largest_batch for s in engine.run(*requests)) >= 7
    return all(torch.equal(engine.of(r), alone(kind, dtype, PROMPTS.index([*r.prompt_token_ids]))) for r in requests)


def after_cache_hits(kind: type[Decoder], dtype: torch.dtype) -> bool:
    engine, first = watched(kind, dtype, max_step_tokens=7), ask(4)
    engine.run(first)
    again, longer = ask(4), request([*PROMPTS[4], 3, 1, 4], NUM_NEW)
    cached = [s.num_cached_tokens for s in engine.run(again, longer)]
    assert cached == [39, 40]  # all but one token, in a copy of the last block; and all of the shared blocks
    other = watched(kind, dtype, has_prefix_cache=False)
    asked = request(longer.prompt_token_ids, NUM_NEW)
    other.run(asked)
    expected = alone(kind, dtype, 4)
    same = [torch.equal(engine.of(each), expected) for each in (first, again)]
    return all(same) and torch.equal(engine.of(longer), other.of(asked))


def after_preemption(kind: type[Decoder], dtype: torch.dtype) -> bool:
    engine = watched(kind, dtype, num_blocks=30, max_step_tokens=32, has_prefix_cache=False)
    for history in engine.engine.scheduler.seating._history.values():  # completions were short: too many are let in
        for _ in range(40):
            history.ended(2, 40)
    requests = [ask(i, num_new=40) for i in range(len(PROMPTS))]
    sequences = engine.run(*requests)
    assert sum(s.wasted_tokens for s in sequences) > 0, "nothing was computed again: this test shows nothing"
    return all(torch.equal(engine.of(r), alone(kind, dtype, i, num_new=40)) for i, r in enumerate(requests))


CASES: dict[str, Callable[[type[Decoder], torch.dtype], bool]] = {
    "chunks of 1": in_chunks(1),
    "chunks of 17": in_chunks(17),
    "batch": in_a_batch,
    "cache hits": after_cache_hits,
    "pre-emption": after_preemption,
}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("case", CASES)
def test_a_sequence_has_the_same_bits_as_alone(case: str, dtype: torch.dtype) -> None:
    assert CASES[case](BatchInvariantDecoder, dtype)


def test_the_normal_mode_has_other_bits() -> None:
    """Or the test above could not fail."""
    assert not all(same(Decoder, torch.float32) for same in CASES.values())


@pytest.mark.parametrize(
    ("is_deterministic", "kernel", "kind"),
    [
        (False, "reference", Decoder),
        (True, "reference", BatchInvariantDecoder),
        (False, "auto", CpuDecoder),
        (True, "auto", CpuDecoder),
    ],
)
@pytest.mark.weights
def test_the_settings_choose_the_decoder(
    is_deterministic: bool, kernel: Literal["auto", "reference"], kind: type[AnyDecoder]
) -> None:
    settings = EngineSettings(deterministic=is_deterministic, kernel=kernel, kv_cache_bytes=64 << 20)
    engine, _ = build_engine(settings)
    assert type(engine.runner.decoder) is kind


@pytest.mark.weights
@pytest.mark.parametrize("dials", DIALS, ids=lambda dials: "-".join(map(str, dials.values())))
def test_the_real_model_has_the_same_bits_alone_in_chunks_in_a_batch_and_from_the_cache(dials: dict[str, Any]) -> None:
    tokenizer = Tokenizer.from_gguf(default_model_path())
    texts = ["The flight from New York to Chicago " * 9, "Prices depend on the day of the week.", "def delay(minutes):"]
    prompts = [tuple(tokenizer.encode(text)) for text in texts]
    pool = PoolSettings(min_seats=1, max_seats=16, max_kv_share=1.0, max_queued=64, max_queued_tokens=10_000)

    def engine(max_step_tokens: int) -> Watched:
        settings = EngineSettings(
            deterministic=True, kv_cache_bytes=256 << 20, max_step_tokens=max_step_tokens, interactive=pool, **dials
        )
        return Watched(build_engine(settings)[0])

    def asked(name: str, index: int) -> GenerateRequest:
        sampling = SamplingParams(max_tokens=4, ignore_eos=True)
        return GenerateRequest(f"{name}-{index}", prompts[index], sampling, Deadline.never())

    whole, chunks = engine(512), engine(17)
    expected = []
    for index in range(3):
        whole.run(asked("alone", index))
        expected.append(whole.of(asked("alone", index)))
    chunks.run(*(asked("chunks", index) for index in range(3)))
    cached = whole.run(*(asked("again", index) for index in range(3)))
    assert cached[0].num_cached_tokens > 32
    for index in range(3):
        assert torch.equal(chunks.of(asked("chunks", index)), expected[index])
        assert torch.equal(whole.of(asked("again", index)), expected[index])
