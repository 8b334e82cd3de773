"""One generation on its way through the engine: its tokens, how far they are computed, and what it has used.

`num_computed_tokens` chases `num_tokens`: prefill, chunked prefill and decode are the same thing seen at different
distances. Whoever computes the last known token also samples the next one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from core_engine.contracts import FinishReason, GenerateRequest, Pool, Usage


@dataclass(slots=True, eq=False)
class Sequence:
    request: GenerateRequest
    arrival_s: float
    token_ids: list[int] = field(default_factory=list)
    block_table: list[int] = field(default_factory=list)
    num_computed_tokens: int = 0
    finish_reason: FinishReason | None = None
    last_step: int = -1  # the step that last ran it
    num_skips: int = 0  # times a later arrival took a seat before it
    device_s: float = 0.0
    kv_block_s: float = 0.0
    largest_batch: int = 0

    def __post_init__(self) -> None:
        self.token_ids = list(self.request.prompt_token_ids)

    @property
    def id(self) -> str:
        return self.request.attempt_id

    @property
    def pool(self) -> Pool:
        return self.request.pool

    @property
    def num_prompt_tokens(self) -> int:
        return len(self.request.prompt_token_ids)

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)

    @property
    def num_completion_tokens(self) -> int:
        return self.num_tokens - self.num_prompt_tokens

    @property
    def num_uncomputed_tokens(self) -> int:
        return self.num_tokens - self.num_computed_tokens

    @property
    def is_decoding(self) -> bool:
        """Its prompt is computed and exactly one token waits."""
        return self.num_completion_tokens > 0 and self.num_uncomputed_tokens == 1

    @property
    def max_tokens(self) -> int:
        """The most tokens that it can ever hold KV for; the last sampled one is never computed."""
        return self.num_prompt_tokens + self.request.sampling.max_tokens - 1

    @property
    def deadline_s(self) -> float:
        return self.request.deadline.at_s

    def urgency(self, max_wait_s: float) -> float:
        """Earliest deadline first; without one, arrival plus the longest wait."""
        return self.deadline_s if math.isfinite(self.deadline_s) else self.arrival_s + max_wait_s

    def append(self, token_id: int, eos_token_ids: frozenset[int]) -> None:
        """Take a sampled token and decide whether it is the last."""
        self.token_ids.append(token_id)
        sampling = self.request.sampling
        is_eos = token_id in eos_token_ids and not sampling.ignore_eos
        if is_eos or token_id in sampling.stop_token_ids:
            self.finish_reason = FinishReason.STOP
        elif self.num_completion_tokens >= sampling.max_tokens:
            self.finish_reason = FinishReason.LENGTH

    def usage(self) -> Usage:
        return Usage(
            prompt_tokens=self.num_prompt_tokens,
            computed_tokens=self.num_computed_tokens,
            completion_tokens=self.num_completion_tokens,
            batch_size=self.largest_batch,
            device_s=self.device_s,
            kv_block_s=self.kv_block_s,
        )
