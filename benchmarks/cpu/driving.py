"""An engine as its process builds it, driven step by step in this one: how long each step took, and where.

Its parts are the kernel's own clock; what is left of a step is Python: schedule, rows, commit, and the sampler, which
is timed apart.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Literal, ParamSpec, TypeVar
from unittest.mock import patch

from core_engine.contracts import Deadline, FinishReason, GenerateRequest, SamplingParams
from core_engine.llm.cpu_decoder import CpuDecoder
from core_engine.llm.engine import Engine
from core_engine.llm.model_decoder import WeightPrecision
from core_engine.llm.sequence import Sequence
from core_engine.settings import EngineSettings
from headrace.engine import build_engine

P = ParamSpec("P")
R = TypeVar("R")
MAX_PREFILL_STEPS = 400  # in which the first of a batch decode while the last wait for their prompts


@dataclass(frozen=True, slots=True)
class StepSeconds:
    """Of one step, or the medians of several. `parts` are empty for a decoder without a clock of its own."""

    step: float
    sampler: float
    parts: dict[str, float] = field(default_factory=dict)

    @property
    def python(self) -> float:
        """Around the kernel, without the sampler."""
        return self.step - self.sampler - sum(self.parts.values())

    @classmethod
    def medians(cls, steps: Iterable[StepSeconds]) -> StepSeconds:
        steps = list(steps)
        parts = {name: statistics.median(each.parts[name] for each in steps) for name in steps[0].parts}
        return cls(
            statistics.median(each.step for each in steps), statistics.median(each.sampler for each in steps), parts
        )

    @classmethod
    def total(cls, steps: Iterable[StepSeconds]) -> StepSeconds:
        steps = list(steps)
        parts = {name: sum(each.parts[name] for each in steps) for name in steps[0].parts}
        return cls(sum(each.step for each in steps), sum(each.sampler for each in steps), parts)


class DrivenEngine:
    """Prompts are random tokens, so nothing is found in the prefix cache."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._rng = random.Random(0)
        self.context_tokens = 0  # of a sequence of the last `decode`, in the middle of it

    @classmethod
    def of(cls, settings: EngineSettings) -> DrivenEngine:
        """An engine that has nothing left to load: its grammars' vocabulary would be in the first steps."""
        engine, _ = build_engine(settings)
        assert engine.runner.grammars is not None
        engine.runner.grammars.state("{}")
        return cls(engine)

    @property
    def decoder(self) -> CpuDecoder:
        decoder = self.engine.runner.decoder
        assert isinstance(decoder, CpuDecoder), "the kernel is not available: see the warning above"
        return decoder

    def decode(self, batch: int, context: int, num_steps: int) -> StepSeconds:
        """Medians of `num_steps` steps that decode `batch` sequences with `context` tokens or more before each.

        More where the batch is large: the first ones decode while the last wait for their prompts; `context_tokens`.
        """
        sequences = [self._add(context - num_steps // 2, num_steps + MAX_PREFILL_STEPS) for _ in range(batch)]
        while any(sequence.num_computed_tokens < sequence.num_prompt_tokens for sequence in sequences):
            self.engine.step()
        self.step()
        self.context_tokens = sum(sequence.num_tokens for sequence in sequences) // batch + num_steps // 2
        found = StepSeconds.medians(self.step() for _ in range(num_steps))
        assert all(sequence.finish_reason is None for sequence in sequences), "the batch was not whole to the end"
        for sequence in sequences:
            self.engine.abort(sequence, FinishReason.ABORT)
        return found

    def prefill(self, num_tokens: int) -> StepSeconds:
        """All steps of one prompt up to its first token, in the engine's chunks."""
        sequence, steps = self._add(num_tokens, 1), list[StepSeconds]()
        while sequence.finish_reason is None:
            steps.append(self.step())
        return StepSeconds.total(steps)

    def step(self) -> StepSeconds:
        decoder, sampler = self.engine.runner.decoder, self.engine.runner.sampler
        kernel = decoder if isinstance(decoder, CpuDecoder) else None
        before = kernel.seconds() if kernel else {}
        sampling = _Clock()
        with patch.multiple(sampler, sample=sampling.on(sampler.sample), take_best=sampling.on(sampler.take_best)):
            start = time.perf_counter()
            self.engine.step()
            seconds = time.perf_counter() - start
        after = kernel.seconds() if kernel else {}
        return StepSeconds(seconds, sampling.seconds, {name: after[name] - before[name] for name in after})

    def close(self) -> None:
        assert self.engine.runner.grammars is not None
        self.engine.runner.grammars.close()

    def _add(self, num_tokens: int, max_tokens: int) -> Sequence:
        vocab_size = self.engine.runner.decoder.config.vocab_size
        prompt = tuple(self._rng.randrange(vocab_size) for _ in range(num_tokens))
        sampling = SamplingParams(max_tokens=max_tokens, ignore_eos=True)
        return self.engine.add(
            GenerateRequest(f"bench-{self._rng.getrandbits(64):x}", prompt, sampling, Deadline.never())
        )


def roomy(weights: WeightPrecision, kv: Literal["model", "int8"]) -> EngineSettings:
    """Seats and KV for 32 sequences at once, or some would wait until others have ended: bulk keeps a seat."""
    interactive = EngineSettings().interactive.model_copy(update={"max_seats": 40})
    return EngineSettings(weights=weights, kv=kv, kv_cache_bytes=1 << 30, interactive=interactive)


class _Clock:
    """Sums up the seconds spent in functions."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def on(self, function: Callable[P, R]) -> Callable[P, R]:
        def clocked(*args: P.args, **kwargs: P.kwargs) -> R:
            start = time.perf_counter()
            result = function(*args, **kwargs)
            self.seconds += time.perf_counter() - start
            return result

        return clocked
