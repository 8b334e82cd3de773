"""On-demand features for one request: a reader folded around another one.

It asks the inner reader once for every stored feature that is needed, computes the rest in this process, and passes on
cost, instant and failure as they came.
"""

from __future__ import annotations

import reprlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import structlog

from core_engine.contracts import EMPTY, Deadline, FeatureRow, FeatureState, FeatureValue, Scalar
from core_engine.errors import ConfigurationError, InvalidRequest
from core_engine.readers import FeatureReader
from featurestore.definitions import Field
from featurestore.field_codec import NOT_EXACT, field_codec
from featurestore.on_demand.columns import StatedColumn, column_of_value, state_of, value_of
from featurestore.on_demand.declaration import REQUEST, OnDemandView
from featurestore.on_demand.plan import Needs, OnDemandPlan
from featurestore.states import MISSING

log = structlog.get_logger(__name__)


class OnDemandReader:
    """A `FeatureReader` of stored and computed features alike. `views` are the on-demand ones."""

    def __init__(self, reader: FeatureReader, views: Iterable[OnDemandView]) -> None:
        self._reader = reader
        self._plan = OnDemandPlan(views)
        inputs = self._plan.inputs.items()
        self._inputs = {name: field_codec(Field(name=name, type=kind)) for name, kind in inputs}

    async def read(
        self, refs: Sequence[str], keys: Mapping[str, str], deadline: Deadline, *, inputs: Mapping[str, Scalar] = EMPTY
    ) -> FeatureRow:
        """Values for `refs`. A computed one has the worst state of what it is made of, and the age of the oldest.

        One whose function fails is `missing`, and its view is among the row's `unreadable`.

        Raises:
            InvalidRequest: an input that a transform needs is not declared by the predictor, or is of another type.
            Whatever the inner reader raises.
        """
        needs = self._plan.needs(refs)
        if not needs.steps:
            return await self._reader.read(refs, keys, deadline, inputs=inputs)
        values = {f"{REQUEST}.{name}": self._input(name, inputs) for name in needs.inputs}
        row = FeatureRow({})
        if needs.features:
            row = await self._reader.read(needs.features, keys, deadline, inputs=inputs)
        values |= {ref: row.values.get(ref, MISSING) for ref in needs.features}
        failed = self._compute(needs, values)
        return replace(row, values={ref: values[ref] for ref in refs}, unreadable=(*row.unreadable, *failed))

    def _input(self, name: str, inputs: Mapping[str, Scalar]) -> FeatureValue:
        """An input as its declared type has it: an integer where a float is declared becomes one."""
        field, codec = f"{REQUEST}.{name}", self._inputs[name]
        if name not in inputs:
            raise InvalidRequest(
                f"{field} is read by an on-demand feature, but it is no input; declare it in the predictor's inputs",
                field=field,
                expected=codec.expected,
            )
        value = inputs[name]
        if value is None:
            return FeatureValue(None, FeatureState.NULL)
        try:
            return FeatureValue(codec.exact(value), FeatureState.PRESENT)
        except NOT_EXACT:
            raise InvalidRequest(
                f"{field} = {reprlib.repr(value)}: expected {codec.expected}",
                field=field,
                value=value,
                expected=codec.expected,
            ) from None

    def _compute(self, needs: Needs, values: dict[str, FeatureValue]) -> list[str]:
        """Adds the value of each step to `values`; returns the views of those that failed."""
        columns = {ref: column_of_value(found.value, found.state) for ref, found in values.items()}
        failed: dict[str, None] = {}
        for step in (self._plan.steps[ref] for ref in needs.steps):
            try:
                column = step.compute([columns[ref] for ref in step.operands])
            except ConfigurationError as error:
                log.error("on_demand_feature_failed", feature=step.ref, error=str(error))
                failed[step.view] = None
                column = column_of_value(None, FeatureState.MISSING)
            columns[step.ref] = column
            values[step.ref] = _stated(column, [values[ref] for ref in step.operands])
        return list(failed)


def _stated(column: StatedColumn, operands: Iterable[FeatureValue]) -> FeatureValue:
    state = state_of(column)
    if state is FeatureState.MISSING:
        return MISSING
    return FeatureValue(value_of(column), state, max((v.age_s for v in operands if v.age_s is not None), default=None))
