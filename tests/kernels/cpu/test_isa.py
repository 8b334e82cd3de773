"""Which level a CPU gets, from what Linux says of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from kernels.cpu import KernelUnavailable
from kernels.cpu.isa import FEATURES, Level, best_level, chosen_level, flags, levels_of, missing, this_cpu

HASWELL = frozenset({"sse2", "avx", "avx2", "fma", "f16c"})
CASCADE_LAKE = HASWELL | {"avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512_vnni"}
ZEN4 = CASCADE_LAKE | {"avx512_bf16"}


@pytest.mark.parametrize(
    ("cpu", "level"),
    [
        (frozenset(), Level.PORTABLE),
        (HASWELL - {"f16c"}, Level.PORTABLE),
        (HASWELL, Level.AVX2),
        (CASCADE_LAKE, Level.AVX2),
        (ZEN4, Level.AVX512),
    ],
)
def test_a_cpu_gets_the_best_level_all_of_which_it_has(cpu: frozenset[str], level: Level) -> None:
    assert best_level(cpu) == chosen_level(None, cpu) == level


def test_a_level_below_the_best_can_be_chosen() -> None:
    assert [chosen_level(level, ZEN4) for level in Level] == list(Level)


def test_a_level_above_the_cpu_is_refused_with_what_it_lacks() -> None:
    with pytest.raises(KernelUnavailable, match="this CPU lacks avx512bf16, which kernel level avx512 needs"):
        chosen_level(Level.AVX512, CASCADE_LAKE)


def test_every_lower_level_runs_wherever_a_higher_one_does() -> None:
    assert set(FEATURES[Level.PORTABLE]) < set(FEATURES[Level.AVX2]) < set(FEATURES[Level.AVX512])
    assert flags(Level.AVX2) == ["-mavx2", "-mfma", "-mf16c"]
    assert flags(Level.PORTABLE) == []


def test_only_x86_has_levels_above_the_portable_one() -> None:
    assert levels_of("x86_64") == levels_of("AMD64") == list(Level)
    assert levels_of("aarch64") == levels_of("arm64") == [Level.PORTABLE]


def test_what_not_every_core_has_does_not_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text(
        "processor\t: 0\nflags\t\t: fpu avx2 fma\nbugs\t\t: f16c\n\nprocessor\t: 1\nflags\t\t: fpu avx2\n"
    )
    assert this_cpu(cpuinfo) == {"fpu", "avx2"}
    assert missing(Level.AVX2, this_cpu(cpuinfo)) == ["fma", "f16c"]


def test_a_system_that_does_not_say_has_no_flags(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert this_cpu(tmp_path / "none") == frozenset()
    (tmp_path / "cpuinfo").write_text("processor\t: 0\n")
    assert this_cpu(tmp_path / "cpuinfo") == frozenset()
    monkeypatch.setattr("platform.machine", lambda: "aarch64")
    assert this_cpu() == frozenset()
