"""Whether on-demand views hang together: their names, operands, types and order. Asked before anything is computed."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise

from core_engine.errors import ConfigurationError
from featurestore.catalog import VIEW_NAME
from featurestore.definitions import FeatureType, FeatureView, Field
from featurestore.on_demand.clocks import is_time_zone
from featurestore.on_demand.declaration import (
    REQUEST,
    AnyTransform,
    Bucket,
    Cross,
    Custom,
    DayOfWeek,
    HashBucket,
    HourOfDay,
    OnDemandFeature,
    OnDemandView,
)
from featurestore.on_demand.functions import DTYPES, load_function

INPUT_TYPES = frozenset(FeatureType) - {FeatureType.BYTES, FeatureType.DECIMAL}  # what a request can carry
LARGEST_BUCKETS = 2**63 - 1
SALT_BYTES = 16  # of BLAKE2b


def on_demand_faults(views: Sequence[FeatureView], on_demand_views: Sequence[OnDemandView]) -> Iterable[str]:
    """Every fault of the on-demand views, as sentences; `views` are those that they may read."""
    yield from _name_faults(views, on_demand_views)
    try:
        ordered, inputs = dependency_order(on_demand_views), input_types(on_demand_views)
    except ConfigurationError as error:
        yield str(error)
        return
    known = {f"{view.name}.{field.name}": field for view in views for field in view.schema}
    for view, feature in ordered:
        ref, own = f"{view.name}.{feature.name}", {i.name for i in view.inputs}
        operands = {**known, **{f"{REQUEST}.{name}": _scalar(kind) for name, kind in inputs.items() if name in own}}
        faults = (*transform_faults(feature.transform), *_operand_faults(feature.transform, operands))
        yield from (f"on-demand feature {ref}: {fault}" for fault in faults)
        known[ref] = _scalar(feature.transform.result)


def dependency_order(views: Iterable[OnDemandView]) -> list[tuple[OnDemandView, OnDemandFeature]]:
    """Every feature after those that it reads. Raises `ConfigurationError` for a circle, naming its members."""
    features = {f"{view.name}.{feature.name}": (view, feature) for view in views for feature in view.features}
    graph = {ref: [name for name in f.transform.of if name in features] for ref, (_, f) in features.items()}
    try:
        return [features[ref] for ref in TopologicalSorter(graph).static_order()]
    except CycleError as error:
        circle = " reads ".join(reversed(error.args[1]))
        raise ConfigurationError(f"on-demand features read each other in a circle: {circle}") from None


def input_types(views: Iterable[OnDemandView]) -> dict[str, FeatureType]:
    """The inputs of all views by name. Raises `ConfigurationError` where two declare one with different types."""
    types: dict[str, FeatureType] = {}
    for view in views:
        for declared in view.inputs:
            if types.setdefault(declared.name, declared.type) is not declared.type:
                raise ConfigurationError(
                    f"on-demand view {view.name}: input {declared.name!r} is declared {declared.type} here and"
                    f" {types[declared.name]} by another view; a request has one input of that name"
                )
    return types


def transform_faults(transform: AnyTransform) -> Iterator[str]:
    """What is wrong with a transform by itself."""
    arity, given = transform.arity, len(transform.of)
    fewest = 2 if isinstance(transform, Cross) else 1
    if given < fewest or (arity is not None and given != arity):
        yield f"it needs {arity or f'{fewest} or more'} operands, got {given}"
    match transform:
        case HashBucket(buckets=buckets, salt=salt):
            if not 1 <= buckets <= LARGEST_BUCKETS or len(salt.encode()) > SALT_BYTES:
                yield f"it needs 1 to 2**63 - 1 buckets, a salt of at most {SALT_BYTES} bytes; got {buckets}, {salt!r}"
        case Bucket(boundaries=bounds):
            if not bounds or not all(map(math.isfinite, bounds)) or any(a >= b for a, b in pairwise(bounds)):
                yield f"its boundaries must be finite and ascending, got {bounds}"
        case HourOfDay(time_zone=zone) | DayOfWeek(time_zone=zone):
            if not is_time_zone(zone):
                yield f"time zone {zone!r} is unknown; use a name such as America/New_York"
        case Custom(function=path, returns=kind):
            if kind not in DTYPES:
                yield f"a function cannot give {kind}; use one of {', '.join(sorted(DTYPES))}"
            try:
                load_function(path)
            except ConfigurationError as error:
                yield str(error)


def _operand_faults(transform: AnyTransform, operands: Mapping[str, Field]) -> Iterator[str]:
    found = {name: operands.get(_own_entity(name)) for name in transform.of}
    for name, field in found.items():
        if field is None:
            yield f"operand {name!r} is neither a declared feature nor a declared input (request.name)"
        elif field.type not in transform.accepts or (field.is_list and not isinstance(transform, Custom)):
            kind = f"a list of {field.type}" if field.is_list else field.type
            yield f"operand {name!r} is {kind}; expected one of {', '.join(sorted(transform.accepts))}"
    instants = {field.type is FeatureType.TIMESTAMP for field in found.values() if field is not None}
    if len(instants) > 1 and not isinstance(transform, Custom):
        yield f"its operands {transform.of} mix a timestamp with a number"


def _own_entity(ref: str) -> str:
    """`view@entity.feature` has the type of `view.feature`."""
    view, dot, feature = ref.rpartition(".")
    return view.partition("@")[0] + dot + feature


def _name_faults(views: Sequence[FeatureView], on_demand_views: Sequence[OnDemandView]) -> Iterator[str]:
    if REQUEST in {*(view.name for view in views), *(view.name for view in on_demand_views)}:
        yield f"no view may be named {REQUEST!r}: that is how transforms name inputs"
    for view in on_demand_views:
        for name in (view.name, *(f.name for f in view.features), *(i.name for i in view.inputs)):
            if not VIEW_NAME.fullmatch(name):
                yield f"on-demand view {view.name}: {name!r} is no name; use letters, digits and _"
        for declared in view.inputs:
            if declared.type not in INPUT_TYPES:
                yield f"on-demand view {view.name}: input {declared.name!r} cannot be {declared.type} in a request"
        if view.version < 1:
            yield f"on-demand view {view.name}: its version must be at least 1, got {view.version}"


def _scalar(kind: FeatureType) -> Field:
    return Field(name="operand", type=kind)
