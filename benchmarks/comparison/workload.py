"""The requests that both sides serve: token ids and fixed lengths, the same on every machine.

W1 is chat-like traffic, W3 scorings that share a long prefix, W4 one stream (decode, prefill), W2 the arrivals of W1
over HTTP. The recorded prompts are read from the shared folder beside the checkout where it is; otherwise random token
ids of the same lengths stand in, and the source says so.
"""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

RECORDED = Path(__file__).resolve().parents[3] / "shared" / "peers" / "workload.json"
SEED = 20261130
TOKEN_IDS = range(1_000, 40_000)  # no control tokens
SHARED_PREFIX = 384
SALTS = range(40_000, 49_000)  # first tokens of prompts: ids that no prompt begins with

# Prompt and output tokens of the 64 requests of W1, as recorded.
W1_LENGTHS = (
    *((303, 202), (212, 256), (512, 210), (354, 256), (19, 154), (359, 171), (263, 127), (85, 107)),
    *((235, 256), (260, 119), (118, 114), (248, 54), (113, 44), (124, 87), (125, 94), (260, 25)),
    *((73, 97), (257, 80), (204, 49), (220, 125), (53, 97), (181, 256), (343, 44), (148, 74)),
    *((323, 231), (85, 40), (132, 115), (81, 116), (79, 137), (185, 97), (79, 68), (183, 132)),
    *((213, 46), (95, 91), (66, 57), (135, 74), (143, 215), (88, 256), (63, 114), (63, 48)),
    *((169, 256), (102, 179), (193, 71), (84, 105), (141, 62), (61, 256), (50, 256), (429, 124)),
    *((113, 127), (102, 256), (92, 146), (63, 188), (25, 114), (342, 155), (80, 23), (78, 115)),
    *((248, 125), (50, 147), (310, 34), (159, 54), (69, 61), (360, 150), (193, 73), (107, 198)),
)


@dataclass(frozen=True, slots=True)
class Job:
    """One request: exactly `max_tokens` tokens are generated, whatever they are."""

    prompt: tuple[int, ...]
    max_tokens: int


@dataclass(frozen=True, slots=True)
class Workload:
    """`gaps` are the times between the arrivals of `w1` at one request per second, in seconds."""

    source: str
    w1: tuple[Job, ...]
    w3: tuple[Job, ...]
    decode: Job
    prefill: Mapping[int, tuple[Job, ...]]
    gaps: tuple[float, ...]


def load_workload(path: Path = RECORDED) -> Workload:
    """The recorded workload where `path` exists, else the generated one of the same lengths."""
    return recorded(path) if path.exists() else generated()


def recorded(path: Path) -> Workload:
    given = json.loads(path.read_bytes())
    single = given["W4"]
    return Workload(
        "recorded prompts",
        _jobs(given["W1"]),
        _jobs(given["W3"]),
        _jobs([single["decode"]])[0],
        {size: _jobs(single[f"prefill{size}"]) for size in (512, 2048)},
        tuple(given["W2_gaps"]),
    )


def generated() -> Workload:
    rng = random.Random(SEED)

    def tokens(count: int) -> tuple[int, ...]:
        return tuple(rng.choice(TOKEN_IDS) for _ in range(count))

    prefix = tokens(SHARED_PREFIX)
    return Workload(
        f"random prompts of the recorded lengths ({RECORDED.name} not found)",
        tuple(Job(tokens(prompt), output) for prompt, output in W1_LENGTHS),
        tuple(Job(prefix + tokens(rng.randint(16, 32)), 1) for _ in W1_LENGTHS),
        Job(tokens(128), 129),
        {512: tuple(Job(tokens(512), 1) for _ in range(5)), 2048: tuple(Job(tokens(2048), 1) for _ in range(3))},
        tuple(rng.expovariate(1.0) for _ in W1_LENGTHS),
    )


def salted(jobs: Sequence[Job], salt: int) -> list[Job]:
    """The same requests with another first token, one per `salt`: nothing that was cached before fits them.

    What requests share among themselves they still share. Raises `ValueError` past the salts that there are.
    """
    if salt >= len(SALTS):
        raise ValueError(f"salt = {salt}: there are {len(SALTS)}; repeat less")
    return [replace(job, prompt=(SALTS[salt], *job.prompt[1:])) for job in jobs]


def shortened(jobs: Sequence[Job], max_tokens: int) -> list[Job]:
    return [replace(job, max_tokens=min(job.max_tokens, max_tokens)) for job in jobs]


def num_output(jobs: Sequence[Job]) -> int:
    return sum(job.max_tokens for job in jobs)


def _jobs(requests: Sequence[Mapping[str, Any]]) -> tuple[Job, ...]:
    return tuple(Job(tuple(each["prompt"]), each["max_tokens"]) for each in requests)
