"""Event-time windows: one definition for history (`history.py`) and stream (`store.py`), by tiles."""
