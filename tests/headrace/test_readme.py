"""The README's snippets work as written: the curl line and the official client, against `headrace up`."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from headrace.runtime import free_port

README = Path(__file__).resolve().parents[2] / "README.md"
ADDRESS = "127.0.0.1:8000"

pytestmark = [pytest.mark.weights, pytest.mark.timeout(300)]


@dataclass(frozen=True, slots=True)
class Up:
    """A stack that runs: where its door listens, and its state folder."""

    address: str
    state: Path


def snippets(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README.read_text(), flags=re.DOTALL)


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    """The stack with the example loaded, as `make up` starts it."""
    port, state = free_port("127.0.0.1"), tmp_path_factory.mktemp("state")
    rest = {key: value for key, value in os.environ.items() if not key.startswith("HEADRACE_")}
    environ = rest | {"HEADRACE_STATE_DIR": str(state), "HEADRACE_HTTP__PORT": str(port)}
    argv = [sys.executable, "-m", "headrace", "up", "--example", "flights"]
    with subprocess.Popen(argv, env=environ, stdout=subprocess.PIPE, text=True) as up:
        assert up.stdout is not None
        for line in up.stdout:
            if line.startswith("Ctrl-C stops everything."):
                break
        assert up.poll() is None, "the stack did not come up"
        try:
            yield Up(f"127.0.0.1:{port}", state)
        finally:
            up.terminate()
    assert up.returncode == 0


def test_the_curl_snippet_gets_a_prediction(stack: Up) -> None:
    (snippet,) = [text for text in snippets("bash") if "curl" in text]
    argv = ["bash", "-ec", snippet.replace(ADDRESS, stack.address)]
    reply: dict[str, Any] = {"rung": ""}
    while reply["rung"] != "model":  # on a busy machine the model may miss its 50 ms; the test's time limit bounds this
        reply = json.loads(subprocess.run(argv, capture_output=True, text=True, check=True, timeout=60).stdout)
    assert 0 <= reply["value"] <= 1
    assert reply["usage"]["batch_size"] >= 1


def test_the_other_doors_and_the_bill_work_beside_it(stack: Up, tmp_path: Path) -> None:
    (snippet,) = [text for text in snippets("bash") if "stack.env" in text]
    commands = snippet.replace(". .venv/bin/activate\n", "").replace(".headrace/stack.env", f"{stack.state}/stack.env")
    environ = os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "COLUMNS": "160"}
    done = subprocess.run(
        ["bash", "-ec", commands], cwd=tmp_path, env=environ, capture_output=True, text=True, check=False, timeout=200
    )
    assert done.returncode == 0, done.stderr
    for part in ("delay_risk", "published as generation", "route_brief", "closes"):
        assert part in done.stdout


def test_the_python_snippet_streams_a_notice(stack: Up) -> None:
    (snippet,) = snippets("python")
    done = subprocess.run(
        [sys.executable, "-c", snippet.replace(ADDRESS, stack.address)],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    assert len(done.stdout.split()) > 5


TRACE = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:17:03.9799600,480,10
2023-11-16 18:17:04.0319600,3180,8
2023-11-16 18:17:04.0781490,110,27
"""
BACKLOG = "num_prefill_tokens,num_decode_tokens,num_total_tokens,pd_ratio\n3772,54,3826,69.8\n2015,156,2171,12.9\n"


def test_the_device_is_calibrated_and_a_trace_simulated_without_a_stack(tmp_path: Path) -> None:
    (snippet,) = [text for text in snippets("bash") if "headrace simulate" in text]
    (tmp_path / "requests.csv").write_text(TRACE)
    (tmp_path / "backlog.csv").write_text(BACKLOG)
    environ = os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "COLUMNS": "160"}
    quickly = snippet.replace("bench device", "bench device --steps 20")
    done = subprocess.run(
        ["bash", "-ec", quickly], cwd=tmp_path, env=environ, capture_output=True, text=True, check=False, timeout=200
    )
    assert done.returncode == 0, done.stderr
    assert set(json.loads((tmp_path / "device.json").read_text())) >= {"a", "b", "c", "d", "e"}
    assert (tmp_path / "run.png").read_bytes().startswith(b"\x89PNG")
    for part in ("TTFT", "TPOT", "goodput", "bulk"):
        assert part in done.stdout


def test_the_make_targets_of_the_readme_exist() -> None:
    makefile = (README.parent / "Makefile").read_text()
    named = {name for text in [*snippets("bash"), README.read_text()] for name in re.findall(r"make ([a-z-]+)", text)}
    assert named >= {"demo", "test", "up", "check", "bench"}
    assert all(re.search(rf"^{name}:", makefile, flags=re.MULTILINE) for name in named), named
