"""On-demand views as the tests need them, and stores that hold what a test says: of one row, and of a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pyarrow as pa

from core_engine.contracts import EMPTY, Deadline, FeatureRow, FeatureState, FeatureValue, ReadCost, Scalar
from featurestore.definitions import FeatureType
from featurestore.offline.spine import EntityColumns
from featurestore.offline.store import STATE_SUFFIX, OfflineStore
from featurestore.on_demand.declaration import AnyTransform, OnDemandFeature, OnDemandView, RequestInput

COST = ReadCost(reads=2, hits=1, bytes=40, round_trips=1)


def on_demand_view(
    transforms: Mapping[str, AnyTransform], inputs: Mapping[str, FeatureType] = EMPTY, name: str = "made"
) -> OnDemandView:
    return OnDemandView(
        name=name,
        version=1,
        owner="tests",
        features=tuple(OnDemandFeature(name=n, transform=transform) for n, transform in transforms.items()),
        inputs=tuple(RequestInput(name=n, type=kind) for n, kind in inputs.items()),
    )


class KnownReader:
    """A `FeatureReader` over fixed values, which notes what it was asked."""

    def __init__(self, values: Mapping[str, FeatureValue], failure: str | None = None) -> None:
        self.values = values
        self.failure = failure
        self.asked: list[tuple[str, ...]] = []
        self.inputs: list[Mapping[str, Scalar]] = []

    async def read(
        self, refs: Sequence[str], keys: Mapping[str, str], deadline: Deadline, *, inputs: Mapping[str, Scalar] = EMPTY
    ) -> FeatureRow:
        self.asked.append(tuple(refs))
        self.inputs.append(inputs)
        return FeatureRow({ref: self.values[ref] for ref in refs}, COST, self.failure, at_us=7, unreadable=("other",))


class KnownStore(OfflineStore):
    """An offline store whose join appends fixed columns."""

    def __init__(self, columns: Mapping[str, tuple[pa.Array, Sequence[FeatureState]]]) -> None:
        super().__init__([])
        self.columns = columns

    def as_of_join(
        self, spine: pa.Table, refs: Sequence[str], entity_columns: EntityColumns, time_column: str
    ) -> pa.Table:
        for ref in refs:
            values, states = self.columns[ref]
            words = pa.array([state.value for state in states], pa.string()).dictionary_encode()
            spine = spine.append_column(ref, values).append_column(ref + STATE_SUFFIX, words)
        return spine
