"""Which clients have been heard of lately. A process that hangs keeps its socket open, and says nothing.

Time is counted by the looks of the engine's own loop, each worth at most a tenth of the lease: an engine that was
itself held up (a long step, a stopped process) reads the renewals that wait in its socket before it judges anybody.
"""

from __future__ import annotations

from core_engine.contracts import Monotonic

LOOKS = 10


class Leases:
    """Clients by the instant of their last message. One thread."""

    def __init__(self, lease_s: float, clock: Monotonic) -> None:
        self.lease_s = lease_s
        self._clock = clock
        self._looked_s = clock()
        self._elapsed_s = 0.0  # as this loop has lived it
        self._heard: dict[bytes, float] = {}  # client -> `_elapsed_s`, the longest silent one first

    def renew(self, client: bytes) -> None:
        self._heard.pop(client, None)
        self._heard[client] = self._elapsed_s

    def lapsed(self) -> list[bytes]:
        """Clients that have been silent for a lease, forgotten from here on. Read the socket first."""
        now_s = self._clock()
        self._elapsed_s += min(now_s - self._looked_s, self.lease_s / LOOKS)
        self._looked_s = now_s
        lapsed: list[bytes] = []
        for client, heard_s in self._heard.items():
            if self._elapsed_s - heard_s < self.lease_s:
                break
            lapsed.append(client)
        for client in lapsed:
            del self._heard[client]
        return lapsed
