"""The streams and tokens that the generations of one call hold of their tenant's quota, for as long as they run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from core_engine.contracts import GenerateRequest
from core_engine.errors import QuotaExceeded
from online.services import Services


@contextmanager
def streams_of(
    services: Services,
    requests: Sequence[GenerateRequest],
    used_tokens: Callable[[], int],
    num_streams: int | None = None,
) -> Iterator[None]:
    """Reserve prompt and max_tokens of each of the requests, which are one tenant's; at the end, correct it by what was
    used. `num_streams`: how many streams they are, if not one each.

    Raises:
        InvalidRequest: more at once than the tenant may ever have.
        QuotaExceeded: of the tenant's streams, or of its tokens per minute.
        EngineRefused: this door has as many streams open as it may.
    """
    quotas, tenant, num_streams = services.gate.quotas, requests[0].tenant, num_streams or len(requests)
    reserved = sum(map(_most_tokens, requests))
    try:
        lease = quotas.open_streams(tenant, num_streams, reserved, services.http.max_streams)
    except QuotaExceeded as error:
        services.metrics.access.labels(tenant, error.quota).inc()
        raise
    services.state.streams += num_streams
    try:
        yield
    finally:
        services.state.streams -= num_streams
        quotas.close_streams(lease, used_tokens())


def _most_tokens(request: GenerateRequest) -> int:
    """A head writes nothing."""
    return len(request.prompt_token_ids) + (request.sampling.max_tokens if request.head is None else 0)
