"""Hands the decoder a plan's rows over the paged cache, and samples from what comes back."""

from __future__ import annotations

from collections.abc import Callable
from itertools import accumulate

import torch

from core_engine.llm.grammar import Grammars
from core_engine.llm.heads import Heads
from core_engine.llm.logprobs import PromptLogprobs, wants_prompt_logprobs
from core_engine.llm.model_decoder import AnyDecoder
from core_engine.llm.sampler import Sampler
from core_engine.llm.sequence import Sequence
from core_engine.llm.speculation.synthetic import SyntheticAcceptance
from core_engine.llm.step_plan import Scheduled, StepPlan
from core_engine.llm.step_result import StepResult
from core_engine.llm.step_rows import step_rows


class Runner:
    """One decoder, its KV cache of `num_blocks` blocks, and the sampler.

    Without `grammars` no request may ask for a `json_schema`; `synthetic` is for benchmarks alone.
    """

    def __init__(
        self,
        decoder: AnyDecoder,
        num_blocks: int,
        block_size: int,
        *,
        eos_token_ids: frozenset[int],
        grammars: Grammars | None = None,
        synthetic: SyntheticAcceptance | None = None,
    ) -> None:
        self.decoder = decoder
        self.sampler = Sampler(eos_token_ids, grammars, synthetic)
        self.prompt_logprobs = PromptLogprobs()
        self.grammars = grammars
        self.heads = Heads(decoder)
        self.cache = decoder.new_cache(num_blocks, block_size)

    @torch.inference_mode()
    def run(self, plan: StepPlan, between: Callable[[], None]) -> StepResult:
        """Compute the plan's tokens: what each sequence's rows give, by attempt id."""
        for source, copy in plan.copies:
            self.cache.copy_block(source, copy)
        hidden = self.decoder.forward(step_rows(plan.scheduled), self.cache, between)
        result = StepResult(heads=self.heads.run(plan.scheduled, hidden))
        self._sample(plan.scheduled, hidden, result)
        return result

    def _sample(self, scheduled: list[Scheduled], hidden: torch.Tensor, result: StepResult) -> None:
        """Tokens and log-probabilities of what generates, from its rows of `hidden` [num_outputs, hidden]."""
        rows: list[int] = []
        sequences: list[Sequence] = []
        drafts: list[list[int]] = []
        ends = accumulate(item.num_outputs for item in scheduled)
        for item, end in zip(scheduled, ends, strict=True):
            sequence = item.sequence
            if sequence.request.head is not None:
                continue
            if wants_prompt_logprobs(sequence):
                prompt_rows = hidden[end - item.num_outputs : end]
                if (entries := self.prompt_logprobs.add(sequence, prompt_rows, self.decoder.logits)) is not None:
                    result.prompt_logprobs[sequence.id] = entries
            if item.samples:
                rows += range(end - 1 - len(item.draft), end)
                sequences.append(sequence)
                drafts.append(item.draft)
        if sequences:
            chosen = hidden if len(rows) == len(hidden) else hidden[rows]
            if self.sampler.wants_only_best(sequences):
                sampled = self.sampler.take_best(*self.decoder.best(chosen), sequences, drafts)
            else:
                sampled = self.sampler.sample(self.decoder.logits(chosen), sequences, drafts)
            result.tokens, result.accepted, result.logprobs = sampled.tokens, sampled.accepted, sampled.logprobs
            result.failures |= sampled.failures

    def forget(self, sequence_id: str) -> None:
        """Let go of what is kept for a sequence that has ended, or has to begin again."""
        self.sampler.forget(sequence_id)
        self.prompt_logprobs.forget(sequence_id)
        self.heads.forget(sequence_id)
