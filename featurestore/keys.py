"""The names of what the store keeps in Redis. An entity's key is the hash tag: in a cluster its views share a node."""

from __future__ import annotations

from featurestore.definitions import FeatureView


def row_key(view: FeatureView, key: str) -> str:
    """The hash of one entity: its newest row."""
    return f"hr:{view.name}:{view.version}:{{{key}}}"


def window_key(view: FeatureView, key: str) -> str:
    """The hash of one entity's window."""
    return f"{row_key(view, key)}:tiles"


def applied_key(view: FeatureView, key: str) -> str:
    """What the keys of the coordinates of the events in an entity's tiles begin with: one key per tile."""
    return f"{row_key(view, key)}:applied"


def progress_key(view: FeatureView) -> str:
    """Up to when a windowed view's events have been applied, by partition."""
    return f"hr:{view.name}:{view.version}:progress"


def late_key(view: FeatureView) -> str:
    """The events that came too late for a windowed view."""
    return f"hr:{view.name}:{view.version}:late"


def marks_key(view: FeatureView) -> str:
    """How far the materialization of a view has come by what this server itself holds."""
    return f"hr:{view.name}:{view.version}:marks"


def view_prefix(name: str, version: int) -> str:
    """What every key of one view version begins with, and no other key: no view's name holds a colon."""
    return f"hr:{name}:{version}:"
