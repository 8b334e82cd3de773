"""What a client is told of a step's event: new tokens, a head's values, or why there is nothing more to come."""

from __future__ import annotations

from core_engine.contracts import FinishReason, Usage
from core_engine.errors import DeadlineExceeded, EngineRefused, HeadraceError
from core_engine.llm import messages as wire
from core_engine.llm.engine import SequenceEvent
from core_engine.llm.translation import failed_message

ENDS: dict[FinishReason | None, tuple[type[HeadraceError], str]] = {
    FinishReason.DEADLINE: (DeadlineExceeded, "the engine dropped the request at its deadline"),
    FinishReason.SHED: (EngineRefused, "the request waited longer than its pool's queue may hold anything"),
}


def tells_usage(event: SequenceEvent) -> bool:
    """Usage goes with the first token, for a caller that will end the sequence before the engine does, and the end."""
    return event.finish_reason is not None or event.sequence.num_completion_tokens == 1


def wire_event(event: SequenceEvent, usage: Usage | None) -> wire.Delta | wire.HeadDone | wire.Failed:
    """The message of `event`, with what its sequence has used where `tells_usage`."""
    sequence, reason = event.sequence, event.finish_reason
    if event.failure is not None:
        return failed_message(sequence.id, event.failure, "the request failed: ")
    if reason in ENDS:
        kind, message = ENDS[reason]
        return wire.Failed(sequence.id, kind.code, message)
    if event.values is not None and usage is not None:
        return wire.HeadDone(sequence.id, event.values, usage.queue_s, usage.prefill_s, usage)
    return wire.Delta(
        sequence.id,
        event.token_ids,
        reason,
        usage,
        logprobs=event.logprobs,
        prompt_logprobs=event.prompt_logprobs,
    )
