"""A token bucket in one number: the instant at which it will be full again.

Source: the virtual scheduling algorithm of ITU-T Recommendation I.371, annex A, of which a token bucket is the mirror
image. It needs no refill, and it tells exactly when there is room.
"""

from __future__ import annotations

from dataclasses import dataclass

ROUNDING_S = 1e-6  # sums of floats: who comes back exactly when told to must not be a nanosecond early


@dataclass(frozen=True, slots=True)
class Rate:
    """`per_s` are let through in the long run, and up to `burst` at once."""

    per_s: float
    burst: float


@dataclass(slots=True)
class Bucket:
    """Full at first. The rate is an argument, so that it may change while the bucket is in use."""

    full_at_s: float = float("-inf")

    def wait_s(self, amount: float, rate: Rate, now_s: float) -> float:
        """Seconds until `amount` may be taken; 0.0: now. An amount above `rate.burst` waits for a full bucket, and
        leaves a debt that others wait for: it is slow, never impossible."""
        missing_s = max(self.full_at_s - now_s, 0.0)
        spare_s = (rate.burst - min(amount, rate.burst)) / rate.per_s
        wait_s = missing_s - spare_s
        return wait_s if wait_s > ROUNDING_S else 0.0

    def take(self, amount: float, rate: Rate, now_s: float) -> None:
        self.full_at_s = max(self.full_at_s, now_s) + amount / rate.per_s

    def give_back(self, amount: float, rate: Rate) -> None:
        """Part of what was taken was not used."""
        self.full_at_s -= amount / rate.per_s
