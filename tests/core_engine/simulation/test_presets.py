from __future__ import annotations

import pytest

from core_engine.errors import ConfigurationError
from core_engine.simulation.presets import PRESETS, preset
from core_engine.simulation.virtual_engine import VirtualEngine
from tests.core_engine.simulation.traces import job


@pytest.mark.parametrize("name", sorted(PRESETS))
def test_every_preset_serves_a_request(name: str) -> None:
    device = preset(name)
    recording = VirtualEngine(device.scheduler(), device.step_time).run([job()])
    assert all(each.is_finished for each in recording.attempts.values())
    assert 0 < recording.peak_kv_share < 0.001


def test_a_scheduler_is_new_each_time() -> None:
    device = preset("h200-like")
    device.scheduler().add(job().request(), 0.0)
    assert not device.scheduler().has_work


def test_an_unknown_preset_names_the_known_ones() -> None:
    with pytest.raises(ConfigurationError, match="preset 'abacus' is unknown; known: h200-like"):
        preset("abacus")
