"""The server-side functions (`functions.lua`) that change windows, each in one atomic step: their names and text.

`apply` takes events of one entity. Where its tiles have sketches, which only the caller can merge, the caller `peek`s,
merges what would be applied, and hands the bytes to `apply` with the version that it saw.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

LIBRARY_NAME: Final = "headrace_window_2"  # a changed body takes a new name: two releases may share one server
APPLY: Final = f"{LIBRARY_NAME}_apply"
PEEK: Final = f"{LIBRARY_NAME}_peek"
SEED: Final = f"{LIBRARY_NAME}_seed"
ADVANCE: Final = f"{LIBRARY_NAME}_advance"
LIBRARY: Final = Path(__file__).with_name("functions.lua").read_text(encoding="utf-8")
