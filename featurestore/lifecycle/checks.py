"""What `headrace features doctor` says: one finding each, with what to do about it."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class Health(enum.StrEnum):
    OK = "ok"
    WARNING = "warning"
    PROBLEM = "problem"


@dataclass(frozen=True, slots=True)
class Check:
    """One thing looked at: of whom (`redis`, `delays:1`), what, how it is, what was found, and what to do."""

    subject: str
    name: str
    health: Health
    found: str
    advice: str = ""


def ok(subject: str, name: str, found: str) -> Check:
    return Check(subject, name, Health.OK, found)


def warning(subject: str, name: str, found: str, advice: str) -> Check:
    return Check(subject, name, Health.WARNING, found, advice)


def problem(subject: str, name: str, found: str, advice: str) -> Check:
    return Check(subject, name, Health.PROBLEM, found, advice)
