"""What each tenant may take now: requests per second, LM tokens per minute, open streams. All in memory.

A tenant's state is its own: whatever one does, no other is refused for it. Streams alone are of a shared, bounded
number; there, the more are open, the fewer may be one tenant's, so that a newcomer finds room.
Source (streams): Choudhury and Hahne, "Dynamic queue length thresholds for shared-memory packet switches", IEEE/ACM
Transactions on Networking 6(2), 1998.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from core_engine.contracts import Monotonic
from core_engine.errors import EngineRefused, InvalidRequest, QuotaExceeded
from core_engine.tenants.bucket import Bucket, Rate

MINUTE_S = 60.0
STREAM_S = 1.0  # when to try again for a stream: nobody knows when one ends
EXACT = 1e-9  # so that a share of 1/49 of 98 is 2
CROWDING = 4  # where there are other tenants, one may hold so many streams for each that it leaves free


@dataclass(frozen=True, slots=True)
class Quota:
    """A tenant's limits; None: no limit."""

    requests_per_s: float | None = None
    tokens_per_minute: int | None = None
    streams: int | None = None

    def over(self, default: Quota) -> Quota:
        """These limits, and those of `default` where none is set here."""
        return Quota(
            default.requests_per_s if self.requests_per_s is None else self.requests_per_s,
            default.tokens_per_minute if self.tokens_per_minute is None else self.tokens_per_minute,
            default.streams if self.streams is None else self.streams,
        )


@dataclass(slots=True)
class Meter:
    """What one tenant has taken."""

    requests: Bucket = field(default_factory=Bucket)
    tokens: Bucket = field(default_factory=Bucket)
    streams: int = 0


@dataclass(frozen=True, slots=True)
class Lease:
    """Open generations and the tokens reserved for them. Whoever opened it closes it, with what was used."""

    tenant: str
    num_streams: int
    reserved_tokens: int


class Quotas:
    """Of one process, on its one event loop: each HTTP worker enforces its `share` of every limit by itself.

    Nothing is asked of a database or of Redis, so a quota holds while they are away, and a refusal costs microseconds.
    """

    def __init__(self, default: Quota, *, share: float = 1.0, clock: Monotonic = time.monotonic) -> None:
        self._default = default
        self._share = share
        self._clock = clock
        self._meters: dict[str, Meter] = {}
        self._own: Mapping[str, Quota] = MappingProxyType({})
        self._num_streams = 0
        self.is_shared = False  # whether more than one tenant is known

    def set(self, own: Mapping[str, Quota], *, is_shared: bool) -> None:
        """The limits that tenants have of their own from now on. What was taken stays taken."""
        self._own, self.is_shared = own, is_shared

    def quota(self, tenant: str) -> Quota:
        own = self._own.get(tenant)
        return self._default if own is None else own.over(self._default)

    def streams(self, tenant: str) -> int:
        """Generations that `tenant` has open."""
        meter = self._meters.get(tenant)
        return 0 if meter is None else meter.streams

    def take_request(self, tenant: str) -> None:
        """Count one request.

        Raises:
            QuotaExceeded: the tenant's requests per second are used up.
        """
        quota = self.quota(tenant)
        if quota.requests_per_s is not None:
            limit = f"{quota.requests_per_s:g} requests per second"
            self._take("requests", limit, self._meter(tenant).requests, 1, self._request_rate(quota.requests_per_s))

    def open_streams(self, tenant: str, num_streams: int, num_tokens: int, max_streams: int) -> Lease:
        """Let generations begin that will together use at most `num_tokens`, prompts and completions.

        Raises:
            InvalidRequest: more generations at once than the tenant may ever have.
            QuotaExceeded: the tenant's streams or tokens are used up.
            EngineRefused: this door has `max_streams` open, or so many that no more may be this tenant's.
        """
        meter, quota = self._meter(tenant), self.quota(tenant)
        most = self._most_streams(quota)
        _check_ever_possible(num_streams, most)
        if most is not None and meter.streams + num_streams > most:
            message = f"this tenant has {meter.streams} generations open and may have {most}"
            raise QuotaExceeded(message, quota="streams", retry_after_s=STREAM_S)
        left = max_streams - self._num_streams - num_streams  # with these open; the last one is for who has none
        if left < 0 or (self.is_shared and meter.streams + num_streams > max(1, CROWDING * left)):
            raise EngineRefused(f"{self._num_streams} generations are open on this door; no more are taken")
        self.take_tokens(tenant, num_tokens)
        meter.streams += num_streams
        self._num_streams += num_streams
        return Lease(tenant, num_streams, num_tokens)

    def close_streams(self, lease: Lease, used_tokens: int) -> None:
        """The generations are over; what was reserved and not used is the tenant's again."""
        self._meter(lease.tenant).streams -= lease.num_streams
        self._num_streams -= lease.num_streams
        self.give_back_tokens(lease.tenant, lease.reserved_tokens - used_tokens)

    def take_tokens(self, tenant: str, num_tokens: int) -> None:
        """Let the language model begin on what will use at most `num_tokens`.

        Raises:
            QuotaExceeded: the tenant's tokens per minute are used up.
        """
        per_minute = self.quota(tenant).tokens_per_minute
        if per_minute is not None:
            limit = f"{per_minute} tokens per minute"
            self._take("tokens", limit, self._meter(tenant).tokens, num_tokens, self._token_rate(per_minute))

    def give_back_tokens(self, tenant: str, num_tokens: int) -> None:
        """So many of those taken were not used."""
        per_minute = self.quota(tenant).tokens_per_minute
        if per_minute is not None:
            self._meter(tenant).tokens.give_back(num_tokens, self._token_rate(per_minute))

    def _take(self, quota: str, limit: str, bucket: Bucket, amount: int, rate: Rate) -> None:
        now_s = self._clock()
        wait_s = bucket.wait_s(amount, rate, now_s)
        if wait_s:
            message = f"this tenant's quota of {limit} is used up; there is room in {wait_s:.3f} s"
            raise QuotaExceeded(message, quota=quota, retry_after_s=wait_s)
        bucket.take(amount, rate, now_s)

    def _meter(self, tenant: str) -> Meter:
        return self._meters.setdefault(tenant, Meter())

    def _most_streams(self, quota: Quota) -> int | None:
        """At least one: a tenant who may have any may have one wherever its connection ends."""
        if quota.streams is None:
            return None
        return max(1, int(quota.streams * self._share + EXACT))

    def _request_rate(self, per_s: float) -> Rate:
        """One second's worth may come at once, and at least one request."""
        return Rate(per_s * self._share, max(per_s * self._share, 1.0))

    def _token_rate(self, per_minute: int) -> Rate:
        return Rate(per_minute * self._share / MINUTE_S, per_minute * self._share)


def _check_ever_possible(num_streams: int, most: int | None) -> None:
    if most is not None and num_streams > most:
        message = f"this call wants {num_streams} generations at once; this tenant may have {most}"
        raise InvalidRequest(message, field="n", value=num_streams, expected=f"at most {most} generations")
