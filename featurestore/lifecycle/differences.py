"""Which fields two declarations differ in, by path: `schema.delay.default: 0.0 -> 1.0`.

Declarations come as JSON's own types. Items of a list are matched by their name, so that a field put in front of a
schema is one difference and not one per field behind it.
"""

from __future__ import annotations

import enum
import reprlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias


class Unset(enum.Enum):
    """The side that does not have the field, or leaves it at its default."""

    UNSET = "unset"


UNSET: Final = Unset.UNSET
NAMES: Final = ("name", "feature")  # what an item of a list is known by
Json: TypeAlias = Any


@dataclass(frozen=True, slots=True)
class Difference:
    path: str
    held: Json
    declared: Json

    def __str__(self) -> str:
        return f"{self.path}: {_shown(self.held)} -> {_shown(self.declared)}"


def differences(held: Json, declared: Json, path: str = "") -> Iterator[Difference]:
    """Every difference from `held` to `declared`, the innermost that can be named; nothing where both are equal."""
    if held == declared:
        return
    if isinstance(held, dict) and isinstance(declared, dict):
        yield from _of_fields(held, declared, path)
    elif (names := _names(held)) is not None and (others := _names(declared)) is not None:
        yield from _of_fields(dict(zip(names, held, strict=True)), dict(zip(others, declared, strict=True)), path)
        if sorted(names) == sorted(others) and names != others:
            yield Difference(f"{path} (order)", names, others)
    else:
        yield Difference(path, held, declared)


def _of_fields(held: dict[str, Json], declared: dict[str, Json], path: str) -> Iterator[Difference]:
    for name in dict.fromkeys((*declared, *held)):
        inner = f"{path}.{name}" if path else name
        yield from differences(held.get(name, UNSET), declared.get(name, UNSET), inner)


def _names(items: Json) -> list[str] | None:
    """What the items of a list are known by; None where they have no distinct names."""
    if not isinstance(items, Sequence) or isinstance(items, str) or not items:
        return None
    for key in NAMES:
        if all(isinstance(item, dict) and isinstance(item.get(key), str) for item in items):
            names = [item[key] for item in items]
            return names if len(set(names)) == len(names) else None
    return None


def _shown(value: Json) -> str:
    return "unset" if value is UNSET else reprlib.repr(value)
