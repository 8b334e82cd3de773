from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.comparison.ours import FALLBACK, Precision, as_run, engine_environ


@pytest.mark.parametrize(
    ("text", "weights", "kv", "bits"),
    [
        ("int8", "int8", "int8", 8),
        ("int8/model", "int8", "model", 8),
        ("int4", "int4", "int8", 4),
        ("bfloat16", "bfloat16", "model", 16),
    ],
)
def test_a_precision_is_weights_and_kv(text: str, weights: str, kv: str, bits: int) -> None:
    precision = Precision.parse(text)
    assert (precision.weights, precision.kv, precision.bits) == (weights, kv, bits)


def test_the_engine_is_measured_without_speculation(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HEADRACE_ENGINE__SPECULATION", "prompt_lookup")
    environ = engine_environ(tmp_path, Precision.parse("bfloat16"))
    assert environ["HEADRACE_ENGINE__SPECULATION"] == "off"
    assert (environ["HEADRACE_ENGINE__WEIGHTS"], environ["HEADRACE_ENGINE__KV"]) == ("bfloat16", "model")
    assert environ["HEADRACE_ENGINE__ENDPOINT"].startswith(f"ipc://{tmp_path}")


def test_precisions_have_names_of_their_own() -> None:
    names = [Precision.parse(text).label().name for text in ("int8", "int8/model", "bfloat16", "bfloat16/int8")]
    assert len(set(names)) == 4
    assert str(Precision.parse("int8/model")) == "int8, bfloat16 KV"


def test_an_engine_without_the_kernel_says_so_beside_its_precision(tmp_path: Path) -> None:
    log, label = tmp_path / "engine.log", Precision.parse("int8").label()
    log.write_text("started\n")
    assert as_run(label, log) == label
    log.write_text(f"[warning] {FALLBACK} reason=no compiler\n")
    assert as_run(label, log).precision == "int8, int8 KV, torch reference"
