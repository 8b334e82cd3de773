"""The prior rung: the base rate of a row's segment. It needs no model and no features, so it always answers."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import msgspec
import numpy as np
import numpy.typing as npt

from core_engine.contracts import entity_key
from core_engine.errors import ConfigurationError, ModelFileError
from core_engine.predictors.declaration import Column, ColumnKind, Prior
from core_engine.scoring.artifact import read_artifact


class PriorTable:
    """Base rates over `prior.segment`, looked up from an encoded row of `columns`.

    Raises:
        ConfigurationError: the segment names a column that is not there or is neither a category nor an hour.
        ModelFileError: unreadable, another digest, or not a JSON object of rates from 0 to 1.
    """

    def __init__(self, prior: Prior, columns: Sequence[Column]) -> None:
        self._fallback = prior.fallback
        self._rates = _load_rates(prior)
        names = [c.name for c in columns]
        absent = [name for name in prior.segment if name not in names]
        if absent or not prior.segment:
            raise ConfigurationError(f"prior: segment {prior.segment} must name columns among {names}")
        self._parts = [(names.index(n), _part_of(columns[names.index(n)])) for n in prior.segment]

    def rate(self, vector: npt.NDArray[np.float32]) -> float:
        """The rate of the row's segment; the fallback where a part is absent or the segment was never seen."""
        values = [(float(vector[i]), part) for i, part in self._parts]
        if any(math.isnan(value) or value < 0 for value, _ in values):
            return self._fallback
        return self._rates.get(entity_key(*(part(int(value)) for value, part in values)), self._fallback)


def _part_of(column: Column) -> Callable[[int], str]:
    match column.kind:
        case ColumnKind.CATEGORY:
            return column.values.__getitem__
        case ColumnKind.HOUR:
            return str
        case kind:
            raise ConfigurationError(f"prior: column {column.name} is {kind}; a segment takes categories and hours")


def _load_rates(prior: Prior) -> dict[str, float]:
    path = prior.artifact.path
    try:
        rates = msgspec.json.decode(read_artifact(path, prior.artifact.sha256), type=dict[str, float])
    except msgspec.DecodeError as error:  # ValidationError is one of its kind
        raise ModelFileError(f"model file {path} is not a JSON object of rates: {error}") from None
    wrong = next((key for key, rate in rates.items() if not 0 <= rate <= 1), None)
    if wrong is not None:
        raise ModelFileError(f"model file {path}: the rate of {wrong!r} is {rates[wrong]}, not from 0 to 1")
    return rates
