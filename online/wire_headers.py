"""Request headers that every door route understands: the caller's budget, and its key of a delivery."""

from __future__ import annotations

import math
import re

from fastapi import Request

from core_engine.errors import InvalidRequest

MAX_BUDGET_MS = 3_600_000.0
NUMBER = re.compile(r"[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]+)?")  # as JSON has them; Python reads 1_000 too
DELIVERY_KEY = re.compile(r"[\x21-\x7e]{1,255}")
BUDGET = f"milliseconds above 0 and at most {MAX_BUDGET_MS:g}"


def budget_ms(request: Request) -> float | None:
    """`X-Deadline-Ms`: how long the caller waits, from the request's arrival.

    Raises:
        InvalidRequest: no number, or out of range.
    """
    given = request.headers.get("x-deadline-ms")
    if given is None:
        return None
    budget = float(given) if NUMBER.fullmatch(given) else math.nan
    if not 0 < budget <= MAX_BUDGET_MS:
        message = f"X-Deadline-Ms = {given[:40]!r}: expected {BUDGET}"
        raise InvalidRequest(message, field="X-Deadline-Ms", value=given, expected=BUDGET)
    return budget


def delivery_key(request: Request) -> str | None:
    """`Idempotency-Key`: groups the attempts that a client makes at one delivery.

    Raises:
        InvalidRequest: empty, too long, or not printable ASCII without spaces.
    """
    given = request.headers.get("idempotency-key")
    if given is not None and not DELIVERY_KEY.fullmatch(given):
        expected = "1 to 255 printable ASCII characters without spaces"
        message = f"Idempotency-Key = {given[:40]!r}: expected {expected}"
        raise InvalidRequest(message, field="Idempotency-Key", value=given, expected=expected)
    return given
