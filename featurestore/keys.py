"""The names of what the store keeps in Redis. An entity's key is the hash tag: in a cluster its views share a node."""

from __future__ import annotations

from featurestore.definitions import FeatureView


def row_key(view: FeatureView, key: str) -> str:
    """The hash of one entity: its newest row, or the tiles of its window."""
    return f"hr:{view.name}:{view.version}:{{{key}}}"


window_key = row_key


def applied_key(view: FeatureView, key: str) -> str:
    """The coordinates of the events that are in an entity's tiles."""
    return f"{row_key(view, key)}:applied"


def progress_key(view: FeatureView) -> str:
    """Up to when a windowed view's events have been applied, by partition."""
    return f"hr:{view.name}:{view.version}:progress"
