"""All that the example declares for its features, for `headrace features apply examples.flights.repository:repository`.

Beside the stored views it declares one on demand: a flight's moment on New York's clocks, and how it compares.
"""

from __future__ import annotations

from collections.abc import Sequence

from core_engine.settings import load_settings
from examples.flights.features import OWNER, feature_views
from examples.flights.prepare import built_folder
from featurestore.definitions import Entity, FeatureType, FeatureView
from featurestore.on_demand.declaration import (
    Cross,
    DayOfWeek,
    Difference,
    HashBucket,
    HourOfDay,
    OnDemandFeature,
    OnDemandView,
    RequestInput,
)
from featurestore.repository import FeatureRepository

NEW_YORK = "America/New_York"
CONNECTION_BUCKETS = 4096  # twice as many as there are pairs of carrier and route in a year

ENTITIES = (
    Entity(name="route", join_keys=("origin", "dest"), owner=OWNER, description="From one airport to another."),
    Entity(name="carrier", join_keys=("carrier",), owner=OWNER, description="An airline, by its IATA code."),
    Entity(name="airport", join_keys=("airport",), owner=OWNER, description="An airport, by its IATA code."),
)

FLIGHT_MOMENT = OnDemandView(
    name="flight_moment",
    version=1,
    owner=OWNER,
    description="A planned flight's moment on New York's clocks, its connection, and how its route compares.",
    inputs=(
        RequestInput(name="carrier", type=FeatureType.STRING),
        RequestInput(name="origin", type=FeatureType.STRING),
        RequestInput(name="dest", type=FeatureType.STRING),
        RequestInput(name="scheduled_departure", type=FeatureType.TIMESTAMP),
    ),
    features=(
        OnDemandFeature(name="hour", transform=HourOfDay(of=("request.scheduled_departure",), time_zone=NEW_YORK)),
        OnDemandFeature(name="weekday", transform=DayOfWeek(of=("request.scheduled_departure",), time_zone=NEW_YORK)),
        OnDemandFeature(name="connection", transform=Cross(of=("request.carrier", "request.origin", "request.dest"))),
        OnDemandFeature(
            name="connection_bucket",
            transform=HashBucket(of=("flight_moment.connection",), buckets=CONNECTION_BUCKETS),
        ),
        OnDemandFeature(
            name="route_over_carrier",
            transform=Difference(of=("route_daily.mean_delay", "carrier_daily.mean_delay")),
            description="Minutes by which the route's mean delay exceeds its carrier's.",
        ),
    ),
)


def flight_repository(views: Sequence[FeatureView]) -> FeatureRepository:
    """The repository over the stored `views` of the example (`features.feature_views`)."""
    return FeatureRepository(entities=ENTITIES, views=tuple(views), on_demand_views=(FLIGHT_MOMENT,))


def repository() -> FeatureRepository:
    """The repository over the history that `headrace up --example flights` built under the state folder.

    Raises:
        ConfigurationError: the data of the example is not installed.
    """
    return flight_repository(feature_views(built_folder(load_settings().state_dir / "flights")))
