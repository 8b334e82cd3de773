"""Files are read once, off the loop; a broken one takes its own rung away and is tried again."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import numpy as np
import pytest

from core_engine.contracts import Deadline, Rung
from core_engine.predictors import rungs as module
from core_engine.predictors.declaration import Predictor
from core_engine.predictors.rungs import CallerRungs, RungCache, load_rungs
from tests.core_engine.predictors.doubles import PRIOR_RATE, STUDENT_SCORE, delay_predictor

NEVER = Deadline.never()


def test_every_declared_part_is_loaded(tmp_path: Path) -> None:
    loaded = load_rungs(delay_predictor(tmp_path))
    assert loaded.encoder is not None
    assert loaded.student is not None
    assert loaded.prior is not None
    assert loaded.faults == {}
    row = np.array([0, 12, np.nan], dtype=np.float32)
    assert loaded.student.score(row) == STUDENT_SCORE
    assert loaded.prior.rate(row) == PRIOR_RATE


def test_parts_that_are_not_declared_are_no_fault(tmp_path: Path) -> None:
    loaded = load_rungs(delay_predictor(tmp_path, student=None, prior=None))
    assert (loaded.student, loaded.prior, loaded.faults) == (None, None, {})


async def test_a_version_is_loaded_once_however_many_ask(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loads: list[str] = []

    def counting(predictor: Predictor) -> CallerRungs:
        loads.append(predictor.id)
        return load_rungs(predictor)

    monkeypatch.setattr(module, "load_rungs", counting)
    cache, predictor = RungCache(), delay_predictor(tmp_path)
    found = await asyncio.gather(*(cache.get(predictor, NEVER) for _ in range(8)))
    assert all(each is found[0] for each in found)
    assert await cache.get(predictor, NEVER) is found[0]
    assert loads == ["delay:1"]


async def test_another_declaration_of_the_same_version_is_not_mistaken_for_it(tmp_path: Path) -> None:
    cache = RungCache()
    assert (await cache.get(delay_predictor(tmp_path), NEVER)).student is not None
    assert (await cache.get(delay_predictor(tmp_path, student=None), NEVER)).student is None


async def test_a_broken_file_is_tried_again_later_and_meanwhile_costs_nothing(tmp_path: Path) -> None:
    now = [0.0]
    cache, predictor = RungCache(retry_s=5.0, clock=lambda: now[0]), delay_predictor(tmp_path)
    assert predictor.student is not None
    path = Path(predictor.student.artifact.path)
    good = path.read_bytes()
    path.write_bytes(b"damaged")

    broken = await cache.get(predictor, NEVER)
    assert broken.student is None
    assert "SHA-256" in broken.faults[Rung.STUDENT]
    assert broken.prior is not None

    path.write_bytes(good)
    now[0] = 4.0
    assert await cache.get(predictor, NEVER) is broken
    now[0] = 6.0
    assert await cache.get(predictor, NEVER) is broken  # at once, while it is loaded in the background
    await asyncio.gather(*cache._loading.values())
    assert (await cache.get(predictor, NEVER)).student is not None


async def test_files_that_take_longer_than_the_deadline_are_a_fault_and_go_on_loading(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    release = threading.Event()

    def slow(predictor: Predictor) -> CallerRungs:
        release.wait()
        return load_rungs(predictor)

    monkeypatch.setattr(module, "load_rungs", slow)
    cache, predictor = RungCache(), delay_predictor(tmp_path)
    waiting = await cache.get(predictor, Deadline.after(0.0))
    assert waiting.faults[Rung.STUDENT] == "version delay:1 is still being loaded"
    release.set()
    assert (await cache.get(predictor, NEVER)).student is not None


async def test_the_oldest_versions_make_room(tmp_path: Path) -> None:
    cache = RungCache(max_versions=2)
    for version in (1, 2, 3):
        await cache.get(delay_predictor(tmp_path, version=version), NEVER)
    assert list(cache._entries) == ["delay:2", "delay:3"]
