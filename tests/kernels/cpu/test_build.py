"""Building, keeping and loading, on a small source of its own and a compiler that counts its calls."""

from __future__ import annotations

import ctypes
import json
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from kernels.cpu import KernelUnavailable, build
from kernels.cpu.build import is_whole, library_path, record_path
from kernels.cpu.compiler import find_compiler
from kernels.cpu.isa import Level
from tests.kernels.cpu.native import RUNNABLE, run_sanitized

pytestmark = pytest.mark.skipif(shutil.which("c++") is None, reason="no C++ compiler")
SOURCE = 'extern "C" int answer() {{ return {}; }}\n'


class Bench:
    """A folder of sources, one of built libraries, and a compiler whose calls are counted."""

    def __init__(self, root: Path) -> None:
        self.folder, self.sources, self.calls = root / "cache", root / "src", root / "calls"
        self.compiler = root / "counted-c++"
        self.sources.mkdir()
        self.write("step.cpp", SOURCE.format(42))
        self.install('exec c++ "$@"')

    def write(self, name: str, text: str) -> None:
        (self.sources / name).write_text(text)

    def install(self, script: str) -> None:
        """The compiler does `script`; what is no call for its version is counted."""
        self.compiler.write_text(f'#!/bin/sh\n[ "$1" = --version ] || echo call >> "{self.calls}"\n{script}\n')
        self.compiler.chmod(0o755)

    def build(self, level: Level = Level.PORTABLE) -> Path:
        return build.build(level, self.folder, sources=self.sources)

    def num_calls(self) -> int:
        return len(self.calls.read_text().splitlines()) if self.calls.exists() else 0


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    made = Bench(tmp_path)
    monkeypatch.setenv("CXX", str(made.compiler))
    return made


def answer(path: Path) -> object:
    return ctypes.CDLL(str(path)).answer()


def test_a_library_is_built_once(bench: Bench) -> None:
    paths = {bench.build() for _ in range(3)}
    assert [answer(path) for path in paths] == [42]
    assert bench.num_calls() == 1
    assert not list(bench.folder.glob("tmp*"))


@pytest.mark.parametrize("name", ["step.cpp", "other.cpp", "team.h"])
def test_a_change_of_any_source_is_built_anew_and_the_old_library_stays(name: str, bench: Bench) -> None:
    old = bench.build()
    bench.write(name, SOURCE.format(43) if name == "step.cpp" else "// new\n")
    new = bench.build()
    assert new != old
    assert (answer(old), answer(new)) == (42, 43 if name == "step.cpp" else 42)
    assert bench.num_calls() == 2


def test_levels_and_the_sanitized_flavour_have_libraries_of_their_own(bench: Bench) -> None:
    paths = {library_path(level, bench.folder, sanitize=sanitize) for level in Level for sanitize in (False, True)}
    assert len(paths) == 2 * len(Level)


@pytest.mark.parametrize("level", RUNNABLE)
def test_each_level_that_this_cpu_runs_is_built_and_loaded(level: Level, bench: Bench) -> None:
    assert build.load(level, bench.folder, sources=bench.sources).answer() == 42
    assert [path.name.partition("-")[0] for path in bench.folder.glob("*.so")] == [level]


def test_the_sanitized_flavour_ends_a_process_at_a_bad_access(bench: Bench) -> None:
    bench.write(
        "step.cpp", 'extern "C" int answer(int wrong) { int* p = new int; if (wrong) delete p; return *p = 42; }'
    )
    code = "import ctypes; from pathlib import Path; from kernels.cpu import build; from kernels.cpu.isa import Level\n"
    code += f"folder, sources = Path({str(bench.folder)!r}), Path({str(bench.sources)!r})\n"
    code += "path = build.build(Level.PORTABLE, folder, sanitize=True, sources=sources)\n"
    code += "print(ctypes.CDLL(str(path)).answer({}))"
    assert run_sanitized(code.format(0)) == "42\n"
    with pytest.raises(AssertionError, match="heap-use-after-free"):
        run_sanitized(code.format(1))


def test_another_compiler_builds_its_own(bench: Bench) -> None:
    path = bench.build()
    bench.install('[ "$1" = --version ] && echo another 1.0 || exec c++ "$@"')
    assert bench.build() == path
    assert bench.num_calls() == 2
    assert json.loads(record_path(path).read_text())["compiler"] == "another 1.0"


def test_a_machine_without_a_compiler_takes_what_was_built(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    path = bench.build()
    monkeypatch.setenv("CXX", "/no/such/compiler")
    assert bench.build() == path
    shutil.rmtree(bench.folder)
    with pytest.raises(KernelUnavailable, match=r"no C\+\+ compiler was found \(tried /no/such/compiler\)"):
        bench.build()


@pytest.mark.parametrize(
    "damage", ["truncated", "one bit", "empty", "gone", "record gone", "record no JSON", "record a list"]
)
def test_a_damaged_library_is_never_opened_but_built_anew(damage: str, bench: Bench) -> None:
    path = bench.build()
    whole, record = path.read_bytes(), record_path(path)
    path.unlink()  # and written as another file: a change in place would reach into a library that is loaded
    match damage:
        case "truncated":
            path.write_bytes(whole[: len(whole) // 2])
        case "one bit":
            path.write_bytes(whole[:5000] + bytes([whole[5000] ^ 1]) + whole[5001:])
        case "empty":
            path.write_bytes(b"")
        case "gone":
            pass
        case "record gone":
            path.write_bytes(whole)
            record.unlink()
        case _:
            path.write_bytes(whole)
            record.write_text("[]" if damage == "record a list" else "{")
    assert not is_whole(path, find_compiler())
    assert answer(bench.build()) == 42
    assert is_whole(path, find_compiler())
    assert bench.num_calls() == 2


def test_processes_that_start_together_build_once(bench: Bench) -> None:
    code = "from pathlib import Path; from kernels.cpu.build import build; from kernels.cpu.isa import Level\n"
    code += f"build(Level.PORTABLE, Path({str(bench.folder)!r}), sources=Path({str(bench.sources)!r}))"
    argv = [sys.executable, "-c", code]
    with ThreadPoolExecutor(4) as pool:
        for done in pool.map(lambda _: subprocess.run(argv, capture_output=True, text=True, check=False), range(4)):
            assert done.returncode == 0, done.stderr
    assert bench.num_calls() == 1


def test_a_build_that_fails_says_the_first_error_and_leaves_nothing(bench: Bench) -> None:
    bench.write("step.cpp", "int answer() {\n  return no_such_name;\n}\n")
    with pytest.raises(KernelUnavailable, match=r"did not build the kernels: \S*step.cpp:2:10: error: .*no_such_name"):
        bench.build()
    assert [path.suffix for path in bench.folder.iterdir()] == [".lock"]


def test_a_compiler_that_tells_no_version_is_refused(bench: Bench) -> None:
    bench.install("echo broken >&2; exit 3")
    with pytest.raises(KernelUnavailable, match="--version failed: broken"):
        bench.build()


def test_a_folder_that_cannot_be_written_is_named(bench: Bench) -> None:
    bench.folder.write_text("a file is in its place")
    with pytest.raises(KernelUnavailable, match=f"the kernels cannot be kept in {bench.folder}"):
        bench.build()


def test_a_folder_that_is_read_only_serves_what_it_has(bench: Bench) -> None:
    path = bench.build()
    for kept in bench.folder.glob("*.lock"):
        kept.unlink()
    bench.folder.chmod(0o500)
    try:
        assert bench.build() == path
    finally:
        bench.folder.chmod(0o700)
    assert not list(bench.folder.glob("*.lock"))


def test_a_library_that_cannot_be_linked_is_one_sentence(bench: Bench) -> None:
    bench.write("step.cpp", 'extern "C" int elsewhere();\nextern "C" int answer() { return elsewhere(); }\n')
    with pytest.raises(KernelUnavailable, match=r"cannot be loaded: .*elsewhere"):
        build.load(Level.PORTABLE, bench.folder, sources=bench.sources)


def test_a_level_above_the_cpu_is_never_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "this_cpu", frozenset)
    with pytest.raises(KernelUnavailable, match="this CPU lacks"):
        build.load(Level.AVX2)


def test_the_default_folder_follows_the_users_cache() -> None:
    assert build.default_folder({"XDG_CACHE_HOME": "/cache"}) == Path("/cache/headrace/kernels")
    assert build.default_folder({}) == Path.home() / ".cache/headrace/kernels"


def test_building_and_loading_import_no_torch() -> None:
    code = "import sys, kernels.cpu.build; sys.exit(' '.join({'torch', 'numpy'} & set(sys.modules)) or 0)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
