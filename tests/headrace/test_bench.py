"""`headrace bench device`: a calibration of the engine at hand, and errors in one sentence."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from core_engine.llm.step_time import StepTime, load_calibration
from core_engine.settings import Settings
from headrace.bench import DeviceReport, of_model, span_of, write_calibration
from tests.core_engine.llm.tiny import CONFIG, tiny_engine
from tests.headrace.test_cli import headrace, sentence_of


def test_a_calibration_is_measured_judged_and_written(tmp_path: Path) -> None:
    report = write_calibration(tiny_engine(), tmp_path / "tiny.json", "float32", 20)
    assert load_calibration("float32", report.path).coefficients == report.model.coefficients
    assert report.model.shortest() > 0
    assert report.held_out == 10
    stored = json.loads(report.path.read_text())
    assert (stored["dtype"], stored["median_error"]) == ("float32", round(report.errors.median, 4))
    assert "torch" in stored["machine"]


def test_the_report_names_every_coefficient_the_error_and_the_setting(tmp_path: Path) -> None:
    report = write_calibration(tiny_engine(), tmp_path / "tiny.json", "float32", 20)
    model = StepTime(0.03, 7e-4, 9e-4, 7e-6, 8e-7)
    text = "\n".join(DeviceReport(model, report.errors, 10, report.path).lines())
    for part in ("a 30 ms", "b 700 us", "c 900 us", "d 7000 ns", "e 800 ns", "10 other steps", "p95"):
        assert part in text
    assert f"HEADRACE_ENGINE__CALIBRATION={report.path}" in text


def test_measured_steps_fit_the_engines_context() -> None:
    span = span_of(tiny_engine())
    assert span.max_context + span.max_chunk < CONFIG.max_positions


def test_another_model_and_precision_replace_the_settings() -> None:
    given = Settings()
    assert of_model(given, None, None) == given
    changed = of_model(given, Path("models/other.gguf"), "float32").engine
    assert (changed.model_path, changed.model_name, changed.weights) == (Path("models/other.gguf"), "other", "float32")


def test_a_model_that_is_not_there_is_one_sentence(tmp_path: Path) -> None:
    done = headrace("bench", "device", "--model", str(tmp_path / "none.gguf"), state=tmp_path)
    assert "none.gguf" in sentence_of(done)
    assert not (tmp_path / "calibrations").exists()


@pytest.mark.parametrize("wrong", [("--weights", "int3"), ("--steps", "1")])
def test_a_wrong_option_is_refused_before_anything_is_loaded(wrong: tuple[str, str], tmp_path: Path) -> None:
    done = headrace("bench", "device", *wrong, state=tmp_path)
    assert done.returncode == 2
    assert wrong[0] in done.stderr
