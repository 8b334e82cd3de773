"""Feast, the feature store that ours is measured against: in an environment of its own, asked by scripts.

pandas is measured in the same environment, as Feast brings it along and ours does not. A script of
`benchmarks/peer-runs` takes its settings as one JSON argument; the last line that it prints is its reply.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.comparison.installation import Installation, PeerFailed, peers_folder, run

PEER = "feast"
SCRIPTS = Path(__file__).resolve().parents[1] / "peer-runs"


def installation() -> Installation:
    return Installation(PEER, peers_folder())


def why_absent() -> str | None:
    """A sentence with the command that installs it, where it is not installed."""
    if installation().is_complete:
        return None
    return f"Feast is not installed in {peers_folder()}: python -m benchmarks.featurestore --install"


def asked(script: str, settings: Mapping[str, Any], python: Path | None = None) -> dict[str, Any]:
    """What `script` replies in a process of its own, by `python` or else Feast's. Raises `PeerFailed` if it fails."""
    feast = installation()
    return reply(run([str(python or feast.python), str(SCRIPTS / script), json.dumps(settings)], feast.environ()))


def reply(printed: str) -> dict[str, Any]:
    """The last line that is an object; what libraries say after it is passed over. Raises `PeerFailed` without one."""
    for line in reversed(printed.splitlines()):
        if line.startswith("{"):
            found: dict[str, Any] = json.loads(line)
            return found
    raise PeerFailed(f"no reply, but {printed[-200:]!r}")
