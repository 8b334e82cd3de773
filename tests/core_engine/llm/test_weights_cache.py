"""Converted weights on disk: found again, never used if damaged, never taken for those of another source or scheme."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from core_engine.llm import weights_cache
from core_engine.llm.quantised_weights import QuantisedWeights, Scheme
from core_engine.llm.weights_cache import cache_key, cached, default_cache_folder
from kernels.quantise import quantise_int4, quantise_int8


def made(seed: int = 0) -> QuantisedWeights:
    """One weight of each kind."""
    weight = torch.randn(6, 96, generator=torch.Generator().manual_seed(seed))
    linears = {
        "output.weight": quantise_int8(weight, 64),
        "blk.0.attn_q.weight": quantise_int4(weight, 32),
        "blk.0.attn_k.weight": quantise_int4(weight, 64, symmetric=True),
    }
    return QuantisedWeights(linears, {"token_embd.weight": weight.bfloat16(), "output_norm.weight": weight[0].clone()})


def forbidden() -> QuantisedWeights:
    return pytest.fail("the weights are in the cache")


def assert_same(one: QuantisedWeights, other: QuantisedWeights) -> None:
    assert set(one.linears) == set(other.linears)
    assert set(one.tensors) == set(other.tensors)
    for name, linear in one.linears.items():
        found = other.linears[name]
        assert (linear.bits, linear.group, linear.minimums is None) == (found.bits, found.group, found.minimums is None)
        assert torch.equal(linear.codes, found.codes)
        assert torch.equal(linear.dequantise(), found.dequantise())
    for name, tensor in one.tensors.items():
        assert tensor.dtype == other.tensors[name].dtype
        assert torch.equal(tensor, other.tensors[name])


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "model.gguf"
    path.write_bytes(b"a model")
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "deep" / "cache"


def only_file(folder: Path) -> Path:
    (file,) = folder.iterdir()  # and nothing of a half written one
    return file


def num_mappings(file: Path) -> int:
    return Path("/proc/self/maps").read_text().count(str(file))


def test_what_was_made_once_is_found_again(source: Path, folder: Path) -> None:
    assert_same(cached(folder, source, Scheme(8), made), made())
    assert_same(cached(folder, source, Scheme(8), forbidden), made())
    assert only_file(folder).suffix == ".safetensors"


def test_found_weights_outlive_a_file_that_is_replaced_or_removed(source: Path, folder: Path) -> None:
    cached(folder, source, Scheme(8), made)
    found = cached(folder, source, Scheme(8), forbidden)
    only_file(folder).unlink()
    assert_same(found, made())


def test_found_weights_are_mapped_not_read(source: Path, folder: Path) -> None:
    cached(folder, source, Scheme(8), made)
    found = cached(folder, source, Scheme(8), forbidden)
    assert num_mappings(only_file(folder)) > 0
    assert_same(found, made())


def test_linear_weights_that_were_packed_leave_memory_while_the_embedding_stays_mapped(
    source: Path, folder: Path
) -> None:
    cached(folder, source, Scheme(8), made)
    found = cached(folder, source, Scheme(8), forbidden)
    before = num_mappings(only_file(folder))
    found.linears.clear()
    assert 0 < num_mappings(only_file(folder)) < before
    assert torch.equal(found.tensors["token_embd.weight"], made().tensors["token_embd.weight"])


def test_another_scheme_source_or_time_is_another_key(source: Path, tmp_path: Path) -> None:
    keys = [cache_key(source, scheme) for scheme in (Scheme(8), Scheme(4), Scheme(8, 32), Scheme(4, symmetric=True))]
    keys.append(cache_key(source, Scheme(4, requantise=True)))
    source.write_bytes(b"another")
    keys.append(cache_key(source, Scheme(8)))
    os.utime(source, (1, 1))
    keys.append(cache_key(source, Scheme(8)))
    keys.append(cache_key(tmp_path, Scheme(8)))  # a folder
    assert len(set(keys)) == len(keys)


def test_the_key_is_the_same_for_the_same(source: Path) -> None:
    assert cache_key(source, Scheme(8)) == cache_key(source, Scheme(8))


def test_another_version_of_the_format_is_another_key(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = cache_key(source, Scheme(8))
    monkeypatch.setattr(weights_cache, "FORMAT", weights_cache.FORMAT + 1)
    assert cache_key(source, Scheme(8)) != before


def test_two_schemes_live_side_by_side(source: Path, folder: Path) -> None:
    cached(folder, source, Scheme(8), made)
    cached(folder, source, Scheme(4), lambda: made(1))
    assert_same(cached(folder, source, Scheme(8), forbidden), made())
    assert_same(cached(folder, source, Scheme(4), forbidden), made(1))


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, bytes]:
    source, folder = tmp_path_factory.mktemp("source") / "model.gguf", tmp_path_factory.mktemp("cache")
    source.write_bytes(b"a model")
    cached(folder, source, Scheme(8), made)
    return source, only_file(folder), only_file(folder).read_bytes()


@given(share=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7), cut=st.booleans())
def test_a_damaged_file_is_never_used_and_is_built_again(
    kept: tuple[Path, Path, bytes], share: float, bit: int, cut: bool
) -> None:
    source, file, content = kept
    place = int(len(content) * share)
    flipped = content[:place] + bytes([content[place] ^ 1 << bit]) + content[place + 1 :]
    file.write_bytes(content[:place] if cut else flipped)
    calls: list[int] = []

    def make() -> QuantisedWeights:
        calls.append(1)
        return made()

    with capture_logs() as logs:
        assert_same(cached(file.parent, source, Scheme(8), make), made())
    assert [line["event"] for line in logs] == ["cached_weights_damaged"]
    assert calls == [1]
    assert only_file(file.parent).read_bytes() == content


def test_a_file_that_is_whole_but_no_cache_is_built_again(source: Path, folder: Path) -> None:
    cached(folder, source, Scheme(8), made)
    file = only_file(folder)
    key, digest = file.name.split(".")[0], "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
    file.unlink()
    (folder / f"{key}.{digest}.safetensors").write_bytes(b"")  # sha256 of nothing
    with capture_logs() as logs:
        assert_same(cached(folder, source, Scheme(8), made), made())
    assert [line["event"] for line in logs] == ["cached_weights_damaged"]
    assert only_file(folder) == file


def test_many_writers_at_once_leave_one_good_file(source: Path, folder: Path) -> None:
    with ThreadPoolExecutor(8) as threads:
        for found in threads.map(lambda _: cached(folder, source, Scheme(8), made), range(32)):
            assert_same(found, made())
    assert_same(cached(folder, source, Scheme(8), forbidden), made())
    assert only_file(folder).is_file()


def test_a_failed_conversion_leaves_nothing(source: Path, folder: Path) -> None:
    def fail() -> QuantisedWeights:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        cached(folder, source, Scheme(8), fail)
    assert not folder.exists()


def test_a_folder_that_cannot_be_written_costs_a_line_and_the_conversion(source: Path, tmp_path: Path) -> None:
    blocked = tmp_path / "a file"
    blocked.write_bytes(b"")
    with capture_logs() as logs:
        assert_same(cached(blocked / "cache", source, Scheme(8), made), made())
    assert [line["event"] for line in logs] == ["weights_not_cached"]
    assert logs[0]["folder"] == str(blocked / "cache")


def test_a_damaged_file_that_cannot_be_removed_is_passed_over(source: Path, folder: Path) -> None:
    folder.mkdir(parents=True)
    stuck = folder / f"{cache_key(source, Scheme(8))}.0.safetensors"
    stuck.mkdir()  # neither opened nor removed as a file, whoever runs the test
    with capture_logs() as logs:
        assert_same(cached(folder, source, Scheme(8), made), made())
    assert [line["event"] for line in logs] == ["cached_weights_damaged"]
    assert stuck.is_dir()


def test_the_default_folder_is_the_users(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert default_cache_folder() == tmp_path / "headrace" / "weights"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/home/somebody")
    assert default_cache_folder() == Path("/home/somebody/.cache/headrace/weights")
