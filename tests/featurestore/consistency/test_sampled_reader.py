"""The sampled reader gives what the reader within gave, counts what it found, and logs as many reads as it should."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from core_engine.contracts import EMPTY, Deadline, FeatureRow, FeatureState, FeatureValue, ReadCost, Scalar
from core_engine.errors import ConfigurationError
from core_engine.metrics import Metrics
from featurestore.consistency.capture import UNREADABLE, Capture, served_row
from featurestore.consistency.log_files import LogFiles, read_log
from featurestore.consistency.sampled_reader import SampledReader
from featurestore.consistency.served_log import ServedLog
from featurestore.consistency.served_rows import ServedComputed, ServedRow, ServedView
from featurestore.definitions import FeatureType, Field
from featurestore.instants import to_us
from featurestore.on_demand.declaration import OnDemandFeature, OnDemandView, Ratio, RequestInput
from tests.featurestore.consistency.rows import NOON, WIDE
from tests.featurestore.consistency.test_log_files import EVER
from tests.featurestore.rows import make_view

AT_US = to_us(NOON, "noon")
PLANES = make_view(
    Field(name="seats", type=FeatureType.INT64), Field(name="speed", type=FeatureType.FLOAT64), name="planes", version=3
)
WEATHER = make_view(Field(name="wind", type=FeatureType.FLOAT64), name="weather", entity="airport")
TRIP = OnDemandView(
    name="trip",
    version=2,
    owner="tests",
    features=(OnDemandFeature(name="km", transform=Ratio(of=("weather.wind", "request.hours"))),),
    inputs=(RequestInput(name="hours", type=FeatureType.FLOAT64),),
)
CAPTURE = Capture([PLANES, WEATHER], [TRIP])
REFS = ["planes.speed", "weather.wind", "weather@dest.wind", "trip.km", "request.hours"]
INPUTS: dict[str, Scalar] = {"hours": 2.0, "secret": "not needed"}
ENTITIES = {"plane": "N1", "airport": "JFK", "dest": "LAX"}
ROW = FeatureRow(
    {
        "planes.speed": FeatureValue(0.5, FeatureState.STALE, 7200.000001),
        "weather.wind": FeatureValue(1.5, FeatureState.PRESENT, -0.25),
        "weather@dest.wind": FeatureValue(None, FeatureState.MISSING),
        "trip.km": FeatureValue(3.0, FeatureState.PRESENT, 1.0),
        "request.hours": FeatureValue(2.0, FeatureState.PRESENT),
    },
    ReadCost(3, 2, 50, 1),
    at_us=AT_US,
)


class Given:
    """A reader that gives `row`, whatever it is asked."""

    def __init__(self, row: FeatureRow) -> None:
        self.row = row
        self.asked: list[tuple[Sequence[str], Mapping[str, str], Mapping[str, Scalar]]] = []

    async def read(
        self, refs: Sequence[str], keys: Mapping[str, str], deadline: Deadline, *, inputs: Mapping[str, Scalar] = EMPTY
    ) -> FeatureRow:
        self.asked.append((refs, keys, inputs))
        return self.row


async def logged(folder: Path, row: FeatureRow, reads: int = 1, rate: float = 1.0) -> list[ServedRow]:
    log = ServedLog(LogFiles(folder, "door", WIDE), Metrics(), max_queued=100_000)
    draw = random.Random(7).random
    reader = SampledReader(Given(row), CAPTURE, Metrics(), log, rate, draw, clock=lambda: NOON)
    for _ in range(reads):
        assert await reader.read(REFS, ENTITIES, Deadline.never(), inputs=INPUTS) is row
    log.close()
    return list(read_log(folder, *EVER, []))


async def test_a_read_is_logged_by_view_and_entity_at_the_instant_it_was_judged_at_with_needed_inputs_only(
    tmp_path: Path,
) -> None:
    (row,) = await logged(tmp_path, ROW)
    assert row == ServedRow(
        AT_US,
        (
            ServedView("planes", 3, "N1", AT_US - 7_200_000_001, ("speed",), (FeatureState.STALE,), (0.5,)),
            ServedView("weather", 1, "JFK", AT_US + 250_000, ("wind",), (FeatureState.PRESENT,), (1.5,)),
            ServedView("weather", 1, "LAX", None, ("wind",), (FeatureState.MISSING,), (None,)),
        ),
        (
            ServedComputed(
                *("trip", 2, {"airport": "JFK"}, {"hours": 2.0}, {"trip": 2, "weather": 1}),
                *(("km",), (FeatureState.PRESENT,), (3.0,)),
            ),
        ),
    )


async def test_a_failed_read_is_logged_at_this_clocks_instant_with_its_failure(tmp_path: Path) -> None:
    missing = {ref: FeatureValue(None, FeatureState.MISSING) for ref in REFS}
    (row,) = await logged(tmp_path, FeatureRow(missing, failure="store_unavailable"))
    assert row.at_us == AT_US
    assert {view.failure for view in row.views} == {"store_unavailable"}


def test_an_unreadable_view_is_told_apart_from_its_neighbours() -> None:
    row = served_row(CAPTURE.asked(REFS[:2]), ENTITIES, {}, FeatureRow(ROW.values, unreadable=("weather",)), AT_US)
    assert [view.failure for view in row.views] == [None, UNREADABLE]


@pytest.mark.parametrize(("rate", "fewest", "most"), [(0.0, 0, 0), (0.01, 10, 40), (0.5, 900, 1100), (1.0, 2000, 2000)])
async def test_as_many_reads_are_logged_as_the_rate_says(tmp_path: Path, rate: float, fewest: int, most: int) -> None:
    assert fewest <= len(await logged(tmp_path, ROW, reads=2000, rate=rate)) <= most


async def test_without_a_log_reads_are_counted_by_view_and_handed_on() -> None:
    metrics, inner = Metrics(), Given(ROW)
    reader = SampledReader(inner, CAPTURE, metrics)
    for _ in range(3):
        assert await reader.read(REFS, ENTITIES, Deadline.never(), inputs=INPUTS) is ROW
    assert inner.asked == [(REFS, ENTITIES, INPUTS)] * 3
    (family,) = metrics.feature_view_reads.collect()
    counts = {tuple(s.labels.values()): s.value for s in family.samples if s.name.endswith("_total")}
    found = {labels: count for labels, count in counts.items() if count}
    assert found == {("planes", "stale"): 3, ("weather", "fresh"): 3, ("weather", "missing"): 3}


async def test_what_the_reader_within_raises_is_raised_and_nothing_is_logged(tmp_path: Path) -> None:
    class Refusing(Given):
        async def read(
            self,
            refs: Sequence[str],
            keys: Mapping[str, str],
            deadline: Deadline,
            *,
            inputs: Mapping[str, Scalar] = EMPTY,
        ) -> FeatureRow:
            raise ConfigurationError("not declared")

    log = ServedLog(LogFiles(tmp_path, "door", WIDE), Metrics())
    reader = SampledReader(Refusing(ROW), CAPTURE, Metrics(), log, 1.0)
    with pytest.raises(ConfigurationError, match="not declared"):
        await reader.read(REFS, ENTITIES, Deadline.never())
    log.close()
    assert list(tmp_path.iterdir()) == []
