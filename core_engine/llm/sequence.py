"""One prompt on its way through the engine: its tokens, how far they are computed, and what it has used.

`num_computed_tokens` chases `num_tokens`: prefill, chunked prefill, decode and recomputing after a pre-emption are the
same thing seen at different distances. Whoever computes the last known token also samples the next one.
"""

from __future__ import annotations

import math

from core_engine.contracts import FinishReason, GenerateRequest, HeadKind, Pooling, Usage
from core_engine.llm.head_plan import BranchHead


class Sequence:
    """Mutable; its scheduler owns it. A plain class with slots: hundreds are touched in every step."""

    __slots__ = (
        "arrival_s",
        "block_hashes",
        "block_table",
        "deadline_s",
        "device_s",
        "due_s",
        "finish_reason",
        "first_output",
        "first_scheduled_s",
        "first_token_s",
        "has_seat",
        "id",
        "is_protected",
        "kv_block_s",
        "largest_batch",
        "last_step",
        "max_completion_tokens",
        "num_cached_tokens",
        "num_computed_tokens",
        "num_preemptions",
        "num_prompt_tokens",
        "num_published",
        "num_run_tokens",
        "num_skips",
        "num_steps",
        "num_tokens_once_computed",
        "pool",
        "request",
        "tenant",
        "token_ids",
        "urgent_s",
        "wasted_tokens",
    )

    def __init__(self, request: GenerateRequest, arrival_s: float) -> None:
        self.request = request
        self.arrival_s = arrival_s
        self.id = request.attempt_id
        self.pool = request.pool
        self.tenant = request.tenant
        self.deadline_s = request.deadline.at_s
        self.due_s = math.inf  # its first token should be out by then
        self.urgent_s = arrival_s  # the earlier, the sooner it is next
        self.token_ids: list[int] = list(request.prompt_token_ids)
        self.num_prompt_tokens = len(self.token_ids)
        self.max_completion_tokens = 0 if request.head else request.sampling.max_tokens
        self.first_output = _first_output(request)  # the first position whose hidden state somebody wants
        self.num_computed_tokens = 0  # from the first token on, KV in `block_table`
        self.num_cached_tokens = 0  # of the prompt, found in the prefix cache when it first took a seat
        self.block_table: list[int] = []
        self.block_hashes: list[bytes] = []  # of its full blocks, as far as anybody has asked
        self.num_published = 0  # blocks of the table that are in the prefix cache
        self.finish_reason: FinishReason | None = None
        self.first_scheduled_s = math.inf
        self.first_token_s = math.inf
        self.last_step = -1  # the step that last ran it
        self.num_skips = 0  # times a later arrival took a seat before it
        self.num_preemptions = 0  # times it lost its blocks
        self.has_seat = False
        self.is_protected = False  # certain of the blocks for all its tokens: never a victim again
        self.num_steps = 0  # steps that have run it,
        self.num_run_tokens = 0  # and the tokens that they have computed for it
        self.num_tokens_once_computed = 0  # the furthest that it has been
        self.wasted_tokens = 0  # computed again because they were lost
        self.device_s = 0.0
        self.kv_block_s = 0.0
        self.largest_batch = 0

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)

    @property
    def num_completion_tokens(self) -> int:
        return len(self.token_ids) - self.num_prompt_tokens

    @property
    def num_uncomputed_tokens(self) -> int:
        return len(self.token_ids) - self.num_computed_tokens

    @property
    def is_decoding(self) -> bool:
        """Everything but its newest, sampled token is computed."""
        return self.num_completion_tokens > 0 and self.num_uncomputed_tokens == 1

    @property
    def max_tokens(self) -> int:
        """The most tokens that it can ever hold KV for; the last sampled one is never computed."""
        return self.num_prompt_tokens + max(0, self.max_completion_tokens - 1)

    @property
    def has_started(self) -> bool:
        """It has had a seat."""
        return self.last_step >= 0

    def append(self, token_id: int, eos_token_ids: frozenset[int]) -> FinishReason | None:
        """Take a sampled token; the reason why it is the last one, if it is."""
        self.token_ids.append(token_id)
        self.first_output = len(self.token_ids) - 1
        num_completion = len(self.token_ids) - self.num_prompt_tokens
        if self.stops_at(token_id, num_completion, eos_token_ids):
            return FinishReason.STOP
        return FinishReason.LENGTH if num_completion >= self.max_completion_tokens else None

    def stops_at(self, token_id: int, num_completion_tokens: int, eos_token_ids: frozenset[int]) -> bool:
        """Whether this token ends it, as the last of so many of its completion."""
        sampling = self.request.sampling
        return num_completion_tokens >= sampling.min_tokens and (
            (token_id in eos_token_ids and not sampling.ignore_eos) or token_id in sampling.stop_token_ids
        )

    def advance(self, num_tokens: int, num_rejected: int = 0) -> None:
        """Take note of `num_tokens` more computed ones; those that had been computed before were wasted.

        `num_rejected` were run as well: a draft's tokens that turned out wrong.
        """
        start = self.num_computed_tokens
        self.num_computed_tokens = end = start + num_tokens
        self.num_steps += 1
        self.num_run_tokens += num_tokens + num_rejected
        if start < self.num_tokens_once_computed:
            self.wasted_tokens += min(end, self.num_tokens_once_computed) - start
        self.num_tokens_once_computed = max(self.num_tokens_once_computed, end)

    def usage(self) -> Usage:
        """What it has used so far. `computed_tokens` counts every token that was run, those run again included."""
        return Usage(
            prompt_tokens=self.num_prompt_tokens,
            cached_tokens=self.num_cached_tokens,
            computed_tokens=self.num_run_tokens,
            completion_tokens=self.num_completion_tokens,
            wasted_tokens=self.wasted_tokens,
            batch_size=self.largest_batch,
            device_s=self.device_s,
            kv_block_s=self.kv_block_s,
        )


def _first_output(request: GenerateRequest) -> int:
    """Position of the first prompt token whose hidden state is wanted; those before it may come from the cache."""
    head, last = request.head, len(request.prompt_token_ids) - 1
    if request.sampling.prompt_logprobs is not None and head is None:
        return 0
    if head is not None and head.kind is HeadKind.EMBED and head.pooling is Pooling.MEAN:
        return 0
    if isinstance(head, BranchHead):
        return head.choices[0].position
    return last
