"""What the calling process holds of a predictor version: its row encoder, student and prior, loaded once.

They must answer while the engine is away, so they live here and not behind a socket. A file that cannot be loaded
takes its own rung away and is tried again later; it never fails a request.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from core_engine.contracts import Deadline, Monotonic, Rung
from core_engine.errors import HeadraceError
from core_engine.predictors.declaration import Predictor
from core_engine.scoring.encoding import RowEncoder
from core_engine.scoring.prior import PriorTable
from core_engine.scoring.student import OnnxStudent

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class CallerRungs:
    """The loaded parts of one version. `faults` says, by rung, why a declared part is not there."""

    encoder: RowEncoder | None = None
    student: OnnxStudent | None = None
    prior: PriorTable | None = None
    faults: Mapping[Rung, str] = field(default_factory=dict)


def load_rungs(predictor: Predictor) -> CallerRungs:
    """Read and check every file of the version. Blocking; never raises for a broken file."""
    faults: dict[Rung, str] = {}

    def attempt(rung: Rung, load: Callable[[], T]) -> T | None:
        try:
            return load()
        except HeadraceError as error:
            faults[rung] = str(error)
            return None

    declared, prior = predictor.student, predictor.prior
    return CallerRungs(
        encoder=attempt(Rung.MODEL, lambda: RowEncoder(predictor.columns)),
        student=attempt(Rung.STUDENT, lambda: OnnxStudent(declared.artifact)) if declared else None,
        prior=attempt(Rung.PRIOR, lambda: PriorTable(prior, predictor.columns)) if prior else None,
        faults=faults,
    )


@dataclass(slots=True)
class _Entry:
    predictor: Predictor
    rungs: CallerRungs
    loaded_at_s: float


class RungCache:
    """Loaded versions by id, at most `max_versions`, oldest out first. One loop; files are read in a thread."""

    def __init__(self, retry_s: float = 5.0, max_versions: int = 256, clock: Monotonic = time.monotonic) -> None:
        self._retry_s = retry_s
        self._max_versions = max_versions
        self._clock = clock
        self._entries: dict[str, _Entry] = {}
        self._loading: dict[str, asyncio.Task[CallerRungs]] = {}

    async def get(self, predictor: Predictor, deadline: Deadline) -> CallerRungs:
        """The loaded parts of `predictor`; waits for the files at most until `deadline`.

        A version whose file was broken answers with its faults at once while it is tried again in the background.
        """
        entry = self._entries.get(predictor.id)
        if entry is not None and entry.predictor == predictor:
            if entry.rungs.faults and self._clock() - entry.loaded_at_s >= self._retry_s:
                self._load(predictor)
            return entry.rungs
        try:
            async with asyncio.timeout(deadline.timeout()):
                return await asyncio.shield(self._load(predictor))
        except TimeoutError:
            waiting = f"version {predictor.id} is still being loaded"
            return CallerRungs(faults=dict.fromkeys((Rung.MODEL, Rung.STUDENT, Rung.PRIOR), waiting))

    def _load(self, predictor: Predictor) -> asyncio.Task[CallerRungs]:
        task = self._loading.get(predictor.id)
        if task is None:
            task = asyncio.create_task(self._read(predictor), name=f"load {predictor.id}")
            self._loading[predictor.id] = task
        return task

    async def _read(self, predictor: Predictor) -> CallerRungs:
        try:
            rungs = await asyncio.to_thread(load_rungs, predictor)
        finally:
            del self._loading[predictor.id]
        self._entries.pop(predictor.id, None)
        self._entries[predictor.id] = _Entry(predictor, rungs, self._clock())
        while len(self._entries) > self._max_versions:
            del self._entries[next(iter(self._entries))]
        return rungs
