"""The wire between the engine client and the engine, one typed struct per message and direction.

msgspec, MessagePack, arrays rather than maps. Client to engine on a DEALER: `ToEngine`. Engine to client on the ROUTER:
`Frame`, at most one per engine step and client, plus `Welcome` once. Heartbeats go out on a PUB socket of their own
thread. Deadlines travel as `contracts.WireDeadline` (remaining nanoseconds + send time).
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from core_engine.contracts import (
    FinishReason,
    Head,
    Path,
    Pool,
    SamplingParams,
    TokenLogprob,
    Usage,
    WireDeadline,
)

PROTOCOL = 2


class Hello(msgspec.Struct, frozen=True, array_like=True, tag="hello"):
    """First message of a client; answered by `Welcome`."""

    protocol: int = PROTOCOL


class Generate(msgspec.Struct, frozen=True, array_like=True, tag="generate"):
    attempt_id: str
    prompt_token_ids: tuple[int, ...]
    sampling: SamplingParams
    deadline: WireDeadline
    pool: Pool
    tenant: str
    predictor: str
    version: int
    path: Path
    template_tokens: int = 0
    head: Head | None = None


class Score(msgspec.Struct, frozen=True, array_like=True, tag="score"):
    attempt_id: str
    scorer: str
    features: bytes  # float32 little endian, [num_rows, num_features]
    num_rows: int
    deadline: WireDeadline
    pool: Pool
    tenant: str
    path: Path


class LoadScorer(msgspec.Struct, frozen=True, array_like=True, tag="load"):
    """Load a torch scorer from a safetensors file on this host; answered by `Loaded` or `Failed`."""

    attempt_id: str
    scorer: str
    path: str
    sha256: str


class Abort(msgspec.Struct, frozen=True, array_like=True, tag="abort"):
    attempt_id: str


ToEngine: TypeAlias = Hello | Generate | Score | LoadScorer | Abort


class PoolLoad(msgspec.Struct, frozen=True, array_like=True):
    waiting: int = 0
    waiting_tokens: int = 0
    running: int = 0


class Snapshot(msgspec.Struct, frozen=True, array_like=True):
    """What admission, routing and metrics need to know of an engine after its last step."""

    step: int = 0
    interactive: PoolLoad = PoolLoad()
    bulk: PoolLoad = PoolLoad()
    scoring_rows: int = 0
    free_blocks: int = 0
    total_blocks: int = 0
    step_s: float = 0.0
    predicted_step_s: float = 0.0
    coefficients: tuple[float, ...] = ()  # seconds: step_time.Coefficients a..e


class Delta(msgspec.Struct, frozen=True, array_like=True, tag="delta"):
    attempt_id: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason | None = None
    usage: Usage | None = None
    detail: str | None = None
    logprobs: tuple[TokenLogprob, ...] | None = None
    prompt_logprobs: tuple[TokenLogprob | None, ...] | None = None


class HeadDone(msgspec.Struct, frozen=True, array_like=True, tag="head"):
    """What a `Generate` with a head gave: `contracts.HeadResult`."""

    attempt_id: str
    values: tuple[float, ...]
    queue_s: float
    model_s: float
    usage: Usage


class Scored(msgspec.Struct, frozen=True, array_like=True, tag="scored"):
    attempt_id: str
    scores: tuple[float, ...]
    queue_s: float
    model_s: float
    usage: Usage


class Loaded(msgspec.Struct, frozen=True, array_like=True, tag="loaded"):
    attempt_id: str
    scorer: str


class Failed(msgspec.Struct, frozen=True, array_like=True, tag="failed"):
    """An attempt that ended without a result. `code` is the code of an `errors.HeadraceError`."""

    attempt_id: str
    code: str
    message: str


Event: TypeAlias = Delta | HeadDone | Scored | Loaded | Failed


class Welcome(msgspec.Struct, frozen=True, array_like=True, tag="welcome"):
    """What a client must know of this engine before it sends work."""

    protocol: int
    incarnation: str
    model: str
    context_tokens: int
    dtype: str
    scorers: tuple[str, ...]


class Frame(msgspec.Struct, frozen=True, array_like=True, tag="frame"):
    """All events of one step for one client, with the snapshot after it."""

    events: tuple[Event, ...]
    snapshot: Snapshot


ToClient: TypeAlias = Welcome | Frame


class Heartbeat(msgspec.Struct, frozen=True, array_like=True):
    """Liveness (it arrives at all) and progress (`snapshot.step` and `busy`), every `heartbeat_s`."""

    incarnation: str
    sent_ns: int
    busy: bool
    snapshot: Snapshot
