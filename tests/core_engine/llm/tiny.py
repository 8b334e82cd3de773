"""A Llama of toy size with seeded random weights, and an engine around it: real code, small numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import count

import torch

from core_engine.contracts import Deadline, FinishReason, GenerateRequest, Pool, SamplingParams
from core_engine.llm.block_pool import BlockPool
from core_engine.llm.decoder import Decoder
from core_engine.llm.engine import Engine
from core_engine.llm.gguf_vocabulary import byte_level_vocabulary
from core_engine.llm.grammar import Grammars
from core_engine.llm.model_config import ModelConfig, expected_shapes
from core_engine.llm.prefix_hash import PrefixHasher
from core_engine.llm.runner import Runner
from core_engine.llm.scheduler import PoolLimits, Scheduler, SchedulerLimits
from core_engine.llm.step_time import StepTime
from core_engine.llm.tokenizer import Tokenizer

CONFIG = ModelConfig(
    num_layers=2,
    hidden_size=32,
    intermediate_size=48,
    num_heads=4,
    num_kv_heads=2,
    head_dim=8,
    vocab_size=97,
    max_positions=256,
    rope_theta=10_000.0,
    rms_norm_eps=1e-5,
    tie_embeddings=True,
)
EOS = 2
STEP_TIME = StepTime(a=0.010, b=0.0005, c=0.001, d=1e-6, e=1e-8)
INTERACTIVE = PoolLimits(min_seats=2, max_seats=8, max_kv_share=1.0, max_queued=64, max_queued_tokens=4096)
BULK = PoolLimits(1, 6, max_kv_share=0.75, max_queued=64, max_queued_tokens=4096, max_starve_s=0.5)
_ids = count()


def tiny_weights(config: ModelConfig = CONFIG) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return {
        name: torch.ones(shape) if "norm" in name else torch.randn(shape, generator=generator) * 0.3
        for name, shape in expected_shapes(config).items()
    }


def limits(max_step_tokens: int = 64, max_step_s: float = 0.015) -> SchedulerLimits:
    return SchedulerLimits(INTERACTIVE, BULK, CONFIG.max_positions, max_step_tokens, max_step_s)


def tiny_engine(
    *,
    num_blocks: int = 65,
    block_size: int = 4,
    max_step_tokens: int = 64,
    clock: Callable[[], float] | None = None,
    has_prefix_cache: bool = True,
    grammars: Grammars | None = None,
) -> Engine:
    hasher = PrefixHasher(block_size, "tiny") if has_prefix_cache else None
    is_ready = grammars.is_ready if grammars is not None else lambda _: True
    pool = BlockPool(num_blocks, block_size)
    scheduler = Scheduler(limits(max_step_tokens), pool, STEP_TIME, hasher, is_ready)
    runner = Runner(
        Decoder(CONFIG, tiny_weights()), num_blocks, block_size, eos_token_ids=frozenset({EOS}), grammars=grammars
    )
    options = {} if clock is None else {"clock": clock}
    return Engine(scheduler, runner, frozenset({EOS}), **options)


def tiny_tokenizer() -> Tokenizer:
    """A token for every printable ASCII character; id 2 is a control token."""
    letters = [chr(code) for code in range(33, 127)] + ["Ġ", "Ċ", "Ã"]
    return Tokenizer(byte_level_vocabulary(letters, [], frozenset({EOS}), "gpt-2", EOS, None))


def request(
    prompt: Sequence[int] = (5, 6, 7),
    max_tokens: int = 8,
    pool: Pool = Pool.INTERACTIVE,
    deadline: Deadline | None = None,
    attempt_id: str | None = None,
    sampling: SamplingParams | None = None,
    *,
    can_end: bool = False,
) -> GenerateRequest:
    """`can_end`: an end-of-sequence token ends its completion."""
    return GenerateRequest(
        attempt_id=attempt_id or f"attempt-{next(_ids)}",
        prompt_token_ids=tuple(prompt),
        sampling=sampling or SamplingParams(max_tokens=max_tokens, ignore_eos=not can_end),
        deadline=deadline or Deadline.never(),
        pool=pool,
    )


def check(engine: Engine) -> None:
    """The block pool adds up, whoever holds what."""
    engine.scheduler.blocks.check_integrity([s.block_table for s in engine.scheduler.sequences()])


def run_all(engine: Engine, requests: Sequence[GenerateRequest], max_steps: int = 2000) -> dict[str, list[int]]:
    """Generate everything together; the completion of each request by attempt id."""
    completions: dict[str, list[int]] = {r.attempt_id: [] for r in requests}
    for each in requests:
        engine.add(each)
    for _ in range(max_steps):
        if not engine.has_work:
            return completions
        for event in engine.step():
            assert event.finish_reason in (None, FinishReason.STOP, FinishReason.LENGTH)
            completions[event.sequence.id] += event.token_ids
        check(engine)
    raise AssertionError(f"not finished after {max_steps} steps")
