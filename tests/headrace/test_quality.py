"""`headrace quality`: a report, a verdict in the exit status, and errors in one sentence."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from core_engine.errors import ConfigurationError
from core_engine.quality.limits import MEASURES
from headrace.quality import QualityOptions, judge, run_quality
from tests.core_engine.llm.families import hf_model, save
from tests.core_engine.llm.tokenizer_folders import SETTINGS, byte_fallback
from tests.headrace.test_cli import headrace, sentence_of

SENTENCE = "The flight from New York to Chicago leaves at nine, and the weather over the lakes is clear. "


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a small random model and a tokenizer that goes with it."""
    folder = tmp_path_factory.mktemp("model")
    tokenizer: Any = byte_fallback()
    size = tokenizer.get_vocab_size(with_added_tokens=True)
    save(hf_model("llama", vocab_size=size, max_position_embeddings=512), folder)
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps(SETTINGS))
    return folder


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "mine.txt"
    path.write_text(SENTENCE * 30)
    return path


def options(model: Path, text: Path, **changed: Any) -> QualityOptions:
    return QualityOptions(model, kernel="reference", text=text, max_tokens=700, **{"weights": "float32", **changed})


def limits(path: Path, **changed: float) -> Path:
    """Limits that everything keeps, but for `changed`."""
    loose = {name: 0.0 if each.is_minimum else float("inf") for name, each in MEASURES.items()} | changed
    path.write_text("[bfloat16]\n" + "\n".join(f"{name} = {value}" for name, value in loose.items()))
    return path


def printed(made: QualityOptions, plot: Path | None = None, report: Path | None = None) -> tuple[bool, str]:
    console = Console(record=True, width=120)
    return run_quality(made, plot, report, console), console.export_text()


def test_the_same_precision_passes_and_the_report_names_the_text_and_its_digest(model: Path, text: Path) -> None:
    made = judge(options(model, text))
    assert made.failed == []
    assert made.found.tokens.max_kl < 1e-5
    holds, lines = printed(options(model, text))
    assert holds
    assert f"text: mine.txt, sha256 {made.text.sha256[:16]}" in lines
    assert "source is in floating point" in lines
    assert "the torch reference, against float32 of the same weights" in lines


def test_a_limit_that_does_not_hold_is_named_with_value_and_limit(model: Path, text: Path, tmp_path: Path) -> None:
    own = limits(tmp_path / "mine.toml", mean_kl=0.0, top1_agreement=1.5)
    holds, lines = printed(options(model, text, weights="bfloat16", limits=own))
    assert not holds
    failed = [line for line in lines.splitlines() if line.startswith("FAILED: ")]
    assert [line.split()[1] for line in failed] == ["mean_kl", "top1_agreement"]
    assert failed[0].endswith("its limit at most 0")
    assert failed[1].endswith("its limit at least 1.5")


def test_json_and_plot_are_written(model: Path, text: Path, tmp_path: Path) -> None:
    report, plot = tmp_path / "found.json", tmp_path / "found.png"
    printed(options(model, text, weights="bfloat16", limits=limits(tmp_path / "mine.toml", mean_kl=0.0)), plot, report)
    found = json.loads(report.read_text())
    assert found["failed"] == ["mean_kl"]
    assert (found["precision"], found["text"]["name"]) == ("bfloat16", "mine.txt")
    assert {each["name"] for each in found["limits"]} == MEASURES.keys()
    assert found["tokens"]["num_tokens"] > 600
    assert sum(each["num_tokens"] for each in found["tokens"]["by_position"]) == found["tokens"]["num_tokens"]
    assert len(found["needles"]["cases"]) == 6
    assert len(found["greedy"]["lengths"]) == 16
    assert plot.read_bytes().startswith(b"\x89PNG")


def test_int8_kv_is_judged_on_its_own(model: Path, text: Path) -> None:
    made = judge(options(model, text, kv="int8"))
    assert made.precision == "float32+kv_int8"
    assert 1e-7 < made.found.tokens.mean_kl < 0.05


def test_only_int4_can_be_put_onto_another_grid(model: Path, text: Path) -> None:
    with pytest.raises(ConfigurationError, match="--requantise is for int4 weights, not for float32"):
        judge(options(model, text, requantise=True))


def test_a_text_that_is_too_short_is_refused(model: Path, tmp_path: Path) -> None:
    short = tmp_path / "short.txt"
    short.write_text("Too short.")
    with pytest.raises(ConfigurationError, match="expected at least 64; 20,000 are sensible"):
        judge(options(model, short))


def test_the_exit_status_is_the_verdict(model: Path, text: Path, tmp_path: Path) -> None:
    command = ["quality", "--model", str(model), "--weights", "bfloat16", "--kernel", "reference", "--text", str(text)]
    command += ["--tokens", "256", "--limits"]
    passing, failing = limits(tmp_path / "loose.toml"), limits(tmp_path / "strict.toml", mean_kl=-1.0)
    assert headrace(*command[:-1], "--limits", str(passing), state=tmp_path).returncode == 0
    done = headrace(*command[:-1], "--limits", str(failing), state=tmp_path)
    assert (done.returncode, done.stderr) == (1, "")
    assert "FAILED: mean_kl is " in done.stdout


@pytest.mark.parametrize("option", ["--text", "--limits", "--model"])
def test_a_file_that_is_not_there_is_one_sentence(option: str, model: Path, tmp_path: Path) -> None:
    given = {"--model": str(model), option: str(tmp_path / "none")}
    done = headrace("quality", *(part for pair in given.items() for part in pair), state=tmp_path)
    assert "none" in sentence_of(done)
