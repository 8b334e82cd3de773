"""The dials: which decoder they give, and one warning with the reason wherever the C++ step cannot be had."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from structlog.testing import capture_logs

from core_engine.llm.batch_invariant import BatchInvariantDecoder
from core_engine.llm.cpu_decoder import CpuDecoder
from core_engine.llm.decoder import Decoder, KvPrecision
from core_engine.llm.model_config import ModelConfig
from core_engine.llm.model_decoder import AnyDecoder, Dials, WeightPrecision, load_decoder, make_decoder
from core_engine.llm.model_files import load_model
from kernels.cpu.build import build, library_path, record_path
from kernels.cpu.compiler import find_compiler
from kernels.cpu.isa import best_level, this_cpu
from tests.core_engine.llm.crowd import alone, script
from tests.core_engine.llm.families import LONG, hf_model, logits_of, save
from tests.core_engine.llm.precisions import random_weights, shape
from tests.core_engine.llm.stepping import Stepper
from tests.kernels.tolerance import relative_rms

needs_compiler = pytest.mark.skipif(find_compiler() is None, reason="no C++ compiler")
WEIGHTS: list[WeightPrecision] = ["float32", "bfloat16", "int8", "int4"]
LEVEL = best_level(this_cpu())
NOTHING: dict[str, Any] = {}
Prepare = Callable[[Path, pytest.MonkeyPatch], Any]


def made(config: ModelConfig, dials: Dials) -> tuple[AnyDecoder, list[str]]:
    """A decoder of random weights, and the reasons of the warnings that it came with."""
    with capture_logs() as logs:
        decoder = make_decoder(config, random_weights(config, dials.weights), dials)
    assert {(each["event"], each["log_level"]) for each in logs} <= {("kernel_unavailable", "warning")}
    return decoder, [each["reason"] for each in logs]


# ---- the C++ step where it can be had


@needs_compiler
@pytest.mark.parametrize("kv", ["bfloat16", "int8"])
@pytest.mark.parametrize("weights", WEIGHTS)
def test_auto_is_the_cpp_step_without_a_word(weights: WeightPrecision, kv: KvPrecision) -> None:
    decoder, warnings = made(shape(), Dials(weights, kv))
    assert isinstance(decoder, CpuDecoder)
    assert (decoder.kv, warnings) == (kv, [])


@needs_compiler
@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize("weights", ["bfloat16", "int8", "int4"])
def test_kv_that_nobody_named_is_bfloat16(weights: WeightPrecision, deterministic: bool) -> None:
    decoder, warnings = made(shape(), Dials(weights, deterministic=deterministic))
    assert isinstance(decoder, CpuDecoder)
    assert (decoder.kv, warnings) == ("bfloat16", [])


@pytest.mark.parametrize("weights", WEIGHTS)
@pytest.mark.parametrize(("deterministic", "kind"), [(False, Decoder), (True, BatchInvariantDecoder)])
def test_the_reference_is_given_where_it_is_asked_for(
    weights: WeightPrecision, deterministic: bool, kind: type[Decoder]
) -> None:
    decoder, warnings = made(shape(), Dials(weights, kernel="reference", deterministic=deterministic))
    assert type(decoder) is kind
    assert (decoder.kv, warnings) == ("bfloat16" if weights in ("int8", "int4") else None, [])


@pytest.mark.parametrize(
    ("dials", "name"),
    [
        (Dials(), "int8"),
        (Dials("int4", "int8"), "int4+kv_int8"),
        (Dials("bfloat16", "bfloat16"), "bfloat16+kv_bfloat16"),
    ],
)
def test_a_precision_has_a_name(dials: Dials, name: str) -> None:
    assert dials.precision == name


@pytest.mark.parametrize("kernel", [pytest.param("auto", marks=needs_compiler), "reference"])
@pytest.mark.parametrize("weights", WEIGHTS)
def test_a_model_is_loaded_at_its_precision(
    weights: WeightPrecision, kernel: Literal["auto", "reference"], tmp_path: Path
) -> None:
    model = hf_model("llama", hidden_size=64, intermediate_size=96)  # heads of 16
    dials = Dials(weights, "int8", kernel, weights_cache=tmp_path / "cache")
    loaded = load_decoder(save(model, tmp_path / "model"), dials)
    assert isinstance(loaded.decoder, CpuDecoder if kernel == "auto" else Decoder)
    assert loaded.config.hidden_size == 64
    assert loaded.eos_token_ids == load_model(tmp_path / "model", torch.float32).eos_token_ids
    error = relative_rms(Stepper(loaded.decoder, block_size=16).prefill(LONG), logits_of(model, LONG).double())
    assert error < {"float32": 0.05, "bfloat16": 0.1, "int8": 0.2, "int4": 0.8}[weights]


# ---- one warning and the reference where it cannot


def no_compiler(folder: Path, patch: pytest.MonkeyPatch) -> dict[str, Any]:
    patch.setenv("CXX", "/nonexistent")
    return {"kernels_cache": folder}


def broken_compiler(folder: Path, patch: pytest.MonkeyPatch) -> dict[str, Any]:
    patch.setenv("CXX", "false")
    return {"kernels_cache": folder}


def damaged_library(folder: Path, patch: pytest.MonkeyPatch) -> dict[str, Any]:
    """And no compiler that could build it anew."""
    path = library_path(LEVEL, folder)
    content = bytearray(build(LEVEL).read_bytes())
    content[5000] ^= 1
    path.write_bytes(content)
    shutil.copy(record_path(build(LEVEL)), record_path(path))
    patch.setenv("CXX", "/nonexistent")
    return {"kernels_cache": folder}


def unlinkable_library(folder: Path, patch: pytest.MonkeyPatch) -> dict[str, Any]:
    """As it was built, by its record, but no library."""
    path, compiler = library_path(LEVEL, folder), find_compiler()
    assert compiler is not None
    path.write_bytes(b"\x7fELF")
    record_path(path).write_text(
        json.dumps({"compiler": compiler.version, "sha256": hashlib.sha256(b"\x7fELF").hexdigest()})
    )
    return {"kernels_cache": folder}


def no_folder(folder: Path, _: pytest.MonkeyPatch) -> dict[str, Any]:
    (folder / "file").write_text("in the way")
    return {"kernels_cache": folder / "file"}


UNAVAILABLE: dict[str, tuple[Prepare, str]] = {
    "no compiler": (no_compiler, r"no C++ compiler was found (tried /nonexistent)"),
    "a compiler that fails": (broken_compiler, "false --version failed"),
    "a damaged library": (damaged_library, "no C++ compiler was found"),
    "a library that is none": (unlinkable_library, "the kernels that were built cannot be loaded"),
    "a folder that cannot be written": (no_folder, "the kernels cannot be kept in"),
}


@needs_compiler
@pytest.mark.parametrize("case", UNAVAILABLE)
def test_a_kernel_that_cannot_be_had_is_one_warning_and_the_reference(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare, told = UNAVAILABLE[case]
    assert_falls_back(shape(), Dials("int8", "int8", **prepare(tmp_path, monkeypatch)), told)


@needs_compiler
@pytest.mark.parametrize(
    ("config", "dials", "told"),
    [
        (replace(shape(), hidden_size=35), NOTHING, "the model's hidden size is 35, the kernel takes multiples of 16"),
        (shape(head_dim=10), NOTHING, "the model's heads have 10 dimensions"),
        (shape(head_dim=264), NOTHING, "the model's heads have 264 dimensions"),
        (shape(), {"block_size": 8}, "block_size is 8, the kernel takes multiples of 16"),
        (shape(), {"block_size": 24}, "block_size is 24"),
        (shape(), {"weights": "float32", "kv": None}, "float32 weights keep float32 KV, which the kernel does not"),
        (shape(), {"cpus": (9999,)}, "threads cannot be started: a thread cannot be pinned to CPU 9999"),
        (shape(), {"cpus": (0,), "num_threads": 3}, "one CPU for each of 3 threads, got 1"),
    ],
    ids=lambda value: value.replace("the model's ", "")[:24] if isinstance(value, str) else "",
)
def test_what_the_kernel_does_not_take_is_one_warning_and_the_reference(
    config: ModelConfig, dials: dict[str, Any], told: str
) -> None:
    assert_falls_back(config, Dials(**{"weights": "int8", "kv": "int8", **dials}), told)


@needs_compiler
def test_determinism_holds_where_the_kernel_cannot_be_had() -> None:
    decoder, warnings = made(shape(head_dim=10), Dials("int8", deterministic=True))
    assert type(decoder) is BatchInvariantDecoder
    assert len(warnings) == 1


def assert_falls_back(config: ModelConfig, dials: Dials, told: str) -> None:
    """One warning; and the numbers of a reference that nobody chose for us."""
    decoder, warnings = made(config, dials)
    assert len(warnings) == 1
    assert told in warnings[0]
    assert type(decoder) is Decoder
    expected = Decoder(config, random_weights(config, dials.weights), dials.kv)
    steps = [Stepper(each, block_size=dials.block_size) for each in (decoder, expected)]
    rows = [alone(each, script(20, 3)) for each in steps]
    assert rows[0].isfinite().all()
    assert torch.equal(*rows)
