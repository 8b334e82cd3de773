"""What is refused at the door of the scheduler: what can never run, and what a full queue may not take."""

from __future__ import annotations

from core_engine.errors import EngineRefused, InvalidRequest
from core_engine.llm.limits import PoolLimits, SchedulerLimits
from core_engine.llm.sequence import Sequence
from core_engine.llm.waiting_queue import WaitingQueue


def check_fits(sequence: Sequence, limits: SchedulerLimits, max_pool_tokens: int) -> None:
    """Raises `InvalidRequest` for an empty prompt, or more tokens than the context or its pool's KV can ever hold."""
    request = sequence.request
    if not request.prompt_token_ids:
        raise InvalidRequest("the prompt has no tokens", field="prompt", value=0, expected="at least 1 token")
    most = min(limits.max_context_tokens, max_pool_tokens)
    if sequence.max_tokens > most:
        raise InvalidRequest(
            f"prompt ({sequence.num_prompt_tokens} tokens) + max_tokens ({sequence.max_completion_tokens}) is over "
            f"the {most} tokens that one {request.pool} sequence may hold",
            field="max_tokens",
            value=sequence.max_completion_tokens,
            expected=f"prompt + max_tokens <= {most}",
        )


def check_queue(
    sequence: Sequence, limits: PoolLimits, queue: WaitingQueue, refused: dict[str, int], now: float
) -> None:
    """Raises `EngineRefused`, counted in `refused` by the bound that was met."""

    def refuse(bound: str, message: str) -> EngineRefused:
        refused[bound] = refused.get(bound, 0) + 1
        return EngineRefused(message)

    pool = sequence.pool
    if len(queue) >= limits.max_queued:
        raise refuse("queue_full", f"the {pool} queue is full: {len(queue)} requests wait")
    if queue.num_tokens + sequence.num_prompt_tokens > limits.max_queued_tokens:
        raise refuse("tokens_full", f"the {pool} queue is full: {queue.num_tokens} prompt tokens wait")
    if sequence.deadline_s <= now:
        raise refuse("deadline", "the deadline passed before the request reached the engine")
