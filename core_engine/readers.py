"""The two ways in which the ladder reads stored values. featurestore implements both; composition roots pass them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from core_engine.contracts import EMPTY, Deadline, FeatureRow, ReadCost, Scalar


class FeatureReader(Protocol):
    """Reads features by reference (`view.feature`) for one request; online from Redis, offline as of an instant."""

    async def read(
        self, refs: Sequence[str], keys: Mapping[str, str], deadline: Deadline, *, inputs: Mapping[str, Scalar] = EMPTY
    ) -> FeatureRow:
        """Values for `refs`; `keys` maps each entity name to its key (`contracts.entity_key`).

        `inputs` are the request's, checked: features that are computed on demand read them. Timestamps are aware.

        Never raises for a lost store or a passed deadline: every value is then `missing` and `failure` says why.
        A view that is not declared raises `ConfigurationError`.
        """
        ...


@dataclass(frozen=True, slots=True)
class StoredPrediction:
    """A precomputed value, the generation that holds it, its age, and what reading it cost."""

    value: float | str | None
    generation: str
    age_s: float
    cost: ReadCost = field(default_factory=ReadCost)


class PredictionReader(Protocol):
    """Looks up what a batch job precomputed."""

    async def lookup(self, predictor: str, entity: str, deadline: Deadline) -> StoredPrediction | None:
        """The stored value, or None where the entity is not in the pinned generation; never that of another one.

        `predictor` is the id of a version (`name:version`): a version never answers with another one's values.

        Raises:
            StoreUnavailable: the store is away. DeadlineExceeded: no answer within the deadline.
        """
        ...
