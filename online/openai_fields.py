"""Which fields of an OpenAI request are taken: the known ones, and others only where they change nothing.

A field that would change the reply and is not supported is refused by name, never dropped; one that carries the value
it has when it is left out is taken. `user`, `metadata` and the like never change a reply and are taken as they are.
"""

from __future__ import annotations

import reprlib
from collections.abc import Mapping
from typing import TypeVar

from pydantic import BaseModel

from online.body import parse
from online.problems import UnsupportedParameter

Wire = TypeVar("Wire", bound=BaseModel)
Neutral = Mapping[str, tuple[object, ...]]  # of fields that are not supported: the values that change nothing

WITHOUT_EFFECT = ("user", "metadata", "safety_identifier", "prompt_cache_key")
CHAT: Neutral = {
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "parallel_tool_calls": (True, False),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "modalities": (["text"],),
    "audio": (),
    "prediction": (),
    "reasoning_effort": (),
    "verbosity": (),
    "web_search_options": (),
    "service_tier": ("auto", "default"),
    "store": (False,),
}
COMPLETION: Neutral = {"best_of": (1,), "echo": (False,), "suffix": ("",)}
EMBEDDING: Neutral = {"dimensions": ()}


def read_fields(wire: type[Wire], body: dict[str, object], neutral: Neutral) -> Wire:
    """`body` as `wire`, without fields that change nothing.

    Raises:
        UnsupportedParameter: a field that would change the reply and is not supported.
        InvalidRequest: a value out of range or of the wrong kind.
    """
    return parse(wire, {name: value for name, value in body.items() if _is_known(wire, name, value, neutral)})


def _is_known(wire: type[BaseModel], name: str, value: object, neutral: Neutral) -> bool:
    if name in wire.model_fields:
        return True
    if name in WITHOUT_EFFECT or (name in neutral and (value is None or _is_one_of(value, neutral[name]))):
        return False
    if name in neutral:
        accepted = " or ".join(["null", *map(str, neutral[name])])
        message = f"{name} = {reprlib.repr(value)} is not supported; leave it out, or send {accepted}"
        raise UnsupportedParameter(message, field=name, value=value, expected=accepted)
    known = ", ".join(sorted(wire.model_fields))
    message = f"{reprlib.repr(name)} is not supported; known fields: {known}"
    raise UnsupportedParameter(message, field=name, value=value, expected=f"one of: {known}")


def _is_one_of(value: object, values: tuple[object, ...]) -> bool:
    """By kind too: to Python, 0 is False and true is 1."""
    return any(type(value) is type(each) and value == each for each in values)
