"""Requests into messages and back, errors out of messages: both ends of the wire use the same few functions."""

from __future__ import annotations

from core_engine.contracts import Deadline, GenerateRequest, ScoreRequest
from core_engine.errors import HeadraceError, InvalidRequest
from core_engine.llm import messages as wire


def generate_message(request: GenerateRequest) -> wire.Generate:
    return wire.Generate(
        request.attempt_id,
        request.prompt_token_ids,
        request.sampling,
        request.deadline.to_wire(),
        request.pool,
        request.tenant,
        request.predictor,
        request.version,
        request.path,
        request.template_tokens,
        request.head,
        request.traceparent,
    )


def generate_request(message: wire.Generate) -> GenerateRequest:
    """Its deadline is on the receiver's clock, less the transit."""
    return GenerateRequest(
        message.attempt_id,
        message.prompt_token_ids,
        message.sampling,
        Deadline.from_wire(message.deadline),
        message.pool,
        message.tenant,
        message.predictor,
        message.version,
        message.path,
        message.template_tokens,
        message.head,
        message.traceparent,
    )


def score_message(request: ScoreRequest) -> wire.Score:
    return wire.Score(
        request.attempt_id,
        request.scorer,
        request.features,
        request.num_rows,
        request.deadline.to_wire(),
        request.pool,
        request.tenant,
        request.path,
        request.traceparent,
    )


def score_request(message: wire.Score) -> ScoreRequest:
    return ScoreRequest(
        message.attempt_id,
        message.scorer,
        message.features,
        message.num_rows,
        Deadline.from_wire(message.deadline),
        message.pool,
        message.tenant,
        message.path,
        message.traceparent,
    )


def failed_message(attempt_id: str, error: HeadraceError, said_before: str = "") -> wire.Failed:
    field = error.field if isinstance(error, InvalidRequest) else None
    return wire.Failed(attempt_id, error.code, f"{said_before}{error}", field)


def error_of(failed: wire.Failed) -> HeadraceError:
    """The error of our tree that `failed.code` names; a code that this process does not know is the root's."""
    kinds = {kind.code: kind for kind in _tree(HeadraceError) if "code" in vars(kind)}  # not a code that it inherits
    kind = kinds.get(failed.code, HeadraceError)
    return kind(failed.message, field=failed.field) if issubclass(kind, InvalidRequest) else kind(failed.message)


def _tree(root: type[HeadraceError]) -> list[type[HeadraceError]]:
    return [root, *(kind for child in root.__subclasses__() for kind in _tree(child))]
