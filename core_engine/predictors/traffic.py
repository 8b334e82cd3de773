"""Which version answers a request that asks for live: pure, and the same in every process.

A canary takes the entities whose point lies below its percentage. The point is a hash of the predictor's name and the
entity's key alone, so that an entity stays on its side until the percentage changes, and a larger one only adds to
those below. The entity is the first that the live version declares; without one, all inputs together are.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime

import msgspec

from core_engine.predictors.declaration import Predictor
from core_engine.predictors.inputs import check_inputs, entity_keys
from core_engine.predictors.registry import CANARY, LIVE, RegistryView


def choose(view: RegistryView, name: str, inputs: Mapping[str, object], *, alias: str = LIVE) -> Predictor:
    """The version that answers `inputs` as they came: live's or, for its share, the canary's; of any other alias its
    own.

    Raises:
        UnknownName: no such predictor or alias. InvalidRequest: inputs without an entity; only where a canary runs.
    """
    chosen, percent = view.resolve(name, alias=alias), view.percents.get(name, 0.0)
    if alias != LIVE or not percent:
        return chosen
    return view.resolve(name, alias=CANARY) if point(name, sticky_key(chosen, inputs)) < percent else chosen


def point(name: str, key: str) -> float:
    """Where an entity stands between 0 and 100, 100 excluded, uniformly over keys; BLAKE2b, the same for ever."""
    digest = hashlib.blake2b(f"{name}:{key}".encode(), digest_size=8).digest()
    return (int.from_bytes(digest) >> 11) / 2**53 * 100  # 53 bits: exact in a float, so that 100 is never reached


def sticky_key(predictor: Predictor, inputs: Mapping[str, object]) -> str:
    """What stays on one side: the key of the predictor's first entity or, without one, all inputs in one order.

    Raises:
        InvalidRequest: inputs that do not match the declaration.
    """
    checked = check_inputs(predictor, inputs)
    if predictor.entities:
        return entity_keys(predictor, checked)[predictor.entities[0].entity]
    instants = {name: v.astimezone(UTC) if isinstance(v, datetime) else v for name, v in checked.items()}
    return msgspec.json.encode(instants, order="sorted").decode()


def input_faults(live: Predictor, canary: Predictor) -> Iterator[str]:
    """Why `canary` ("there") could refuse what `live` ("here") takes: a share of the requests would be 422s."""
    offered = {field.name: field for field in canary.inputs}
    for field in live.inputs:
        taken = offered.pop(field.name, None)
        if taken is None:
            yield f"input {field.name!r} is not known there"
        elif taken.kind != field.kind or taken.required > field.required:
            was = _said(field.kind, required=field.required)
            yield f"input {field.name!r} is {was} here, {_said(taken.kind, required=taken.required)} there"
    for field in offered.values():
        if field.required:
            yield f"input {field.name!r} is required there and not known here"


def _said(kind: str, *, required: bool) -> str:
    return f"{'a required' if required else 'an optional'} {kind}"
