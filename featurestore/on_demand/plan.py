"""On-demand views, compiled once: which stored features each computed one needs, in which order, and its function.

The reader and the join ask it the same two questions - what to fetch, and what comes of it - with columns of one row
and of many.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from core_engine.contracts import FeatureState
from core_engine.errors import ConfigurationError
from featurestore.definitions import FeatureType
from featurestore.on_demand.columns import RANK, StatedColumn, has_values, type_of, worst
from featurestore.on_demand.declaration import REQUEST, AnyTransform, Custom, OnDemandView
from featurestore.on_demand.functions import DTYPES, Array, function_of
from featurestore.on_demand.soundness import dependency_order, input_types, transform_faults

STALE, NULL = RANK[FeatureState.STALE], RANK[FeatureState.NULL]


@dataclass(frozen=True, slots=True)
class Needs:
    """What some references need, without repetition: stored `features` to read, `inputs` of the request by name, and
    computed ones (`steps`) in the order of their computation."""

    features: tuple[str, ...]
    inputs: tuple[str, ...]
    steps: tuple[str, ...]


class Step:
    """One computed feature; `ref` is `view.feature`."""

    def __init__(self, view: str, ref: str, transform: AnyTransform) -> None:
        faults = list(transform_faults(transform))
        if faults:
            raise ConfigurationError(f"on-demand feature {ref}: {'; '.join(faults)}")
        self.view = view
        self.ref = ref
        self.type = transform.result
        self.operands = transform.of
        self._transform = transform
        self._function = function_of(transform)

    def compute(self, operands: Sequence[StatedColumn]) -> StatedColumn:
        """The feature of every row; where its function is undefined it is null, or stale where an operand is.

        Raises:
            ConfigurationError: an operand of a type that the transform does not take, or a user's function that fails.
        """
        severity, has_value = worst(operands), has_values(operands)
        if has_value.all():
            values, is_defined = self._call([operand.values for operand in operands])
        else:
            values, is_defined = np.zeros(len(severity), DTYPES[self.type]), has_value.copy()
            if has_value.any():
                known = self._call([operand.values[has_value] for operand in operands])
                values[has_value], is_defined[has_value] = known
        if not is_defined.all():
            severity = np.where(is_defined | (severity >= STALE), severity, NULL)
        return StatedColumn(values, is_defined, severity)

    def _call(self, operands: Sequence[Array]) -> tuple[Array, NDArray[np.bool_]]:
        """The function of rows in which every operand has a value; at least one row."""
        self._check_types(operands)
        computed = self._function(operands)
        is_defined = computed.is_defined
        return computed.values, np.ones(len(computed.values), np.bool_) if is_defined is None else is_defined

    def _check_types(self, operands: Sequence[Array]) -> None:
        """A stored view may have been declared anew with another type since the repository was checked."""
        if isinstance(self._transform, Custom):
            return
        kinds = [type_of(operand) for operand in operands]
        accepted = self._transform.accepts
        if accepted.issuperset(kinds) and (len(set(kinds)) == 1 or FeatureType.TIMESTAMP not in kinds):
            return
        found = ", ".join(f"{name} is {kind or 'a list'}" for name, kind in zip(self.operands, kinds, strict=True))
        raise ConfigurationError(
            f"on-demand feature {self.ref}: {found}; expected each of {', '.join(sorted(accepted))}, and no timestamp"
            " beside a number"
        )


class OnDemandPlan:
    """The computed features of `views`, one version of each.

    Raises:
        ConfigurationError: a declaration that is not sound, or a user's function that cannot be loaded.
    """

    def __init__(self, views: Iterable[OnDemandView]) -> None:
        views = list(views)
        self.inputs = input_types(views)
        self.steps: dict[str, Step] = {}
        self._needs: dict[str, Needs] = {}
        for view, feature in dependency_order(views):
            step = Step(view.name, f"{view.name}.{feature.name}", feature.transform)
            self.steps[step.ref] = step
            needs = self.needs(step.operands)
            self._needs[step.ref] = Needs(needs.features, needs.inputs, (*needs.steps, step.ref))

    def needs(self, refs: Sequence[str]) -> Needs:
        """What `refs` need; a reference that is not computed is a stored feature, or an input (`request.name`)."""
        parts = [self._needs.get(ref) or _of_base(ref) for ref in refs]
        return Needs(
            tuple(dict.fromkeys(name for part in parts for name in part.features)),
            tuple(dict.fromkeys(name for part in parts for name in part.inputs)),
            tuple(dict.fromkeys(name for part in parts for name in part.steps)),
        )


def _of_base(ref: str) -> Needs:
    view, _, name = ref.partition(".")
    return Needs((), (name,), ()) if view == REQUEST else Needs((ref,), (), ())
