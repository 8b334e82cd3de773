"""A deadline that no stall of the test's own can miss."""

from __future__ import annotations

from core_engine.contracts import Deadline


def always_left(budget_s: float) -> Deadline:
    """`budget_s` are left of it whenever it is looked at. A timer that is started by it runs for `budget_s`."""
    far_s = 1e9  # on no machine's clock yet: a message that carries the deadline seems to have taken no time
    return Deadline(far_s + budget_s, lambda: far_s)
