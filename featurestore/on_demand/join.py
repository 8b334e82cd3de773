"""On-demand features for a training table: the functions of the reader, on whole columns of an as-of join."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from core_engine.contracts import EMPTY, FeatureState
from core_engine.errors import InvalidRequest
from featurestore.definitions import FeatureType, Field
from featurestore.offline.source_schema import arrow_type, fits
from featurestore.offline.spine import EntityColumns
from featurestore.offline.store import STATE_SUFFIX, OfflineStore, with_column
from featurestore.on_demand.columns import StatedColumn, column_of_table, table_columns
from featurestore.on_demand.declaration import REQUEST, OnDemandView
from featurestore.on_demand.plan import OnDemandPlan


def on_demand_join(
    store: OfflineStore,
    views: Iterable[OnDemandView],
    spine: pa.Table,
    refs: Sequence[str],
    entity_columns: EntityColumns,
    time_column: str,
    input_columns: Mapping[str, str] = EMPTY,
) -> pa.Table:
    """As `OfflineStore.as_of_join`, with computed features among `refs`; `views` are the on-demand ones.

    Of what they are computed from, only what is in `refs` stays in the table. `input_columns` names the spine's column
    of an input of the request, where it is not the input's own name; null there is null.

    Raises:
        ConfigurationError: a declaration that is not sound, or a function that fails.
        InvalidRequest: an input's column lacking, or of another type. Whatever `as_of_join` raises.
    """
    plan = OnDemandPlan(views)
    needs = plan.needs(refs)
    columns = {
        f"{REQUEST}.{name}": _input(spine, input_columns.get(name, name), Field(name=name, type=kind))
        for name, kind in plan.inputs.items()
        if name in needs.inputs
    }
    joined = store.as_of_join(spine, needs.features, entity_columns, time_column)
    operands = {name for ref in needs.steps for name in plan.steps[ref].operands}
    columns |= {ref: column_of_table(*_stated(joined, ref)) for ref in needs.features if ref in operands}
    for step in (plan.steps[ref] for ref in needs.steps):
        columns[step.ref] = step.compute([columns[ref] for ref in step.operands])
    for ref in dict.fromkeys(refs):
        computed = plan.steps.get(ref)
        stated = _stated(joined, ref) if computed is None else table_columns(columns[ref], computed.type)
        for name, column in zip((ref, ref + STATE_SUFFIX), stated, strict=True):
            spine = with_column(spine, name, column)
    return spine


def _stated(joined: pa.Table, ref: str) -> tuple[pa.Array, pa.DictionaryArray]:
    return joined[ref].combine_chunks(), joined[ref + STATE_SUFFIX].combine_chunks()


def _input(spine: pa.Table, name: str, field: Field) -> StatedColumn:
    if name not in spine.column_names:
        raise InvalidRequest(
            f"the spine has no column {name!r} for input {field.name!r}; it has {spine.column_names}",
            field=name,
            expected="a column's name",
        )
    column = spine[name].combine_chunks()
    try:
        if not (fits(field, column.type) or _is_exact_number(field, column.type)):
            raise pa.ArrowInvalid("it is another kind of type")
        values = column.cast(arrow_type(field))
    except pa.ArrowInvalid as error:
        raise InvalidRequest(
            f"spine column {name} is {column.type}: expected {field.type} for input {field.name!r}: {error}",
            field=name,
            expected=field.type,
        ) from None
    states = pc.if_else(values.is_valid(), FeatureState.PRESENT.value, FeatureState.NULL.value)
    return column_of_table(values, states.dictionary_encode())


def _is_exact_number(field: Field, kind: pa.DataType) -> bool:
    """A request's integer is taken for a float too."""
    return field.type is FeatureType.FLOAT64 and pa.types.is_integer(kind)
