"""The wire between the engine client and the engine, one typed struct per message and direction.

msgspec, MessagePack, arrays rather than maps. Client to engine on a DEALER: `ToEngine`. Engine to client on the ROUTER:
`Frame`, at most one per engine step and client, plus `Welcome` once. Heartbeats go out on a PUB socket of their own
thread. Deadlines travel as `contracts.WireDeadline` (remaining nanoseconds + send time).
"""

from __future__ import annotations

import enum
import math
from collections.abc import Mapping
from typing import Any, TypeAlias, TypeVar

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
K = TypeVar("K", bound=str)


class Hello(msgspec.Struct, frozen=True, array_like=True, tag="hello"):
    """First message of a client; answered by `Welcome`."""

    protocol: int = PROTOCOL


class Renew(msgspec.Struct, frozen=True, array_like=True, tag="renew"):
    """This client lives and reads. Every message says so; this one says nothing else. See `Welcome.lease_s`."""


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
    traceparent: str | None = None


class Score(msgspec.Struct, frozen=True, array_like=True, tag="score"):
    attempt_id: str
    scorer: str
    features: bytes  # float32 little endian, [num_rows, num_features]
    num_rows: int
    deadline: WireDeadline
    pool: Pool
    tenant: str
    path: Path
    traceparent: str | None = None


class LoadScorer(msgspec.Struct, frozen=True, array_like=True, tag="load"):
    """Load a torch scorer from a safetensors file on this host; answered by `Loaded` or `Failed`."""

    attempt_id: str
    scorer: str
    path: str
    sha256: str


class LoadHead(msgspec.Struct, frozen=True, array_like=True, tag="load_head"):
    """Load a linear head for `classify` from a safetensors file on this host; answered by `Loaded` or `Failed`."""

    attempt_id: str
    head: str
    path: str
    sha256: str


class Abort(msgspec.Struct, frozen=True, array_like=True, tag="abort"):
    attempt_id: str


ToEngine: TypeAlias = Hello | Renew | Generate | Score | LoadScorer | LoadHead | Abort


class AbortReason(enum.StrEnum):
    """Whose hand ended an attempt that was neither done nor late."""

    CALLER = "caller"  # its client asked for it
    VANISHED = "vanished"  # its client's connection is gone
    FULL = "full"  # its client takes no more frames
    LEASE = "lease"  # its client was silent for a lease
    SHUTDOWN = "shutdown"  # the engine ended first


class PoolLoad(msgspec.Struct, frozen=True, array_like=True):
    """One class of an engine's work: sequences that wait for a seat, and those that have one."""

    waiting: int = 0
    waiting_tokens: int = 0  # of `waiting`: prompt tokens not computed yet
    running: int = 0
    prefill_tokens: int = 0  # of `running`: prompt tokens not computed yet
    decode_rows: int = 0  # of `running`: those whose prompt is computed
    decode_context_tokens: int = 0  # the context of those rows, summed
    pairs_left: int = 0  # of `waiting` and `running`: attended pairs of their prompt tokens not computed yet
    completion_tokens_left: int = 0  # of `waiting` and `running`: the most that they may still bring, summed
    completion_ratio: float = 1.0  # completion tokens / max_tokens, each summed over recently finished ones
    prefill_share: float = 0.0  # of the last seconds: the time that went to this class's prompts
    max_seats: int = 0  # how many may run at once; 0: not known


class Counters(msgspec.Struct, array_like=True):
    """What one pool has done since its engine started; the scheduler counts, everything only grows.

    Conservation, at every snapshot: `admitted` = sum of `finished` + `PoolLoad.running` + `PoolLoad.waiting`. What is
    refused was never admitted.
    """

    admitted: int = 0
    finished: dict[str, int] = {}  # by `FinishReason`, aborts and failures among them
    refused: dict[str, int] = {}  # by bound: queue_full, tokens_full, too_old, deadline, draining, ...
    preemptions: int = 0
    displaced: int = 0  # seats that an interactive sequence took from this pool's
    prompt_tokens: int = 0  # of admitted requests
    computed_tokens: int = 0  # rows that a step ran, those computed again among them
    cached_tokens: int = 0  # rows that the prefix cache saved
    generation_tokens: int = 0
    wasted_tokens: int = 0  # rows computed, lost at a pre-emption, and so computed again
    steps: int = 0  # that ran something of this pool; of a step with both pools each has the whole time
    step_s_sum: float = 0.0  # the model's runs in them,
    predicted_step_s_sum: float = 0.0  # and what the step-time model had said of these
    drafts: int = 0  # of a sequence in a step, for verification,
    draft_tokens: int = 0  # tokens in them,
    accepted_tokens: int = 0  # and those of these that became part of a completion

    def copy(self) -> Counters:
        """These counts as they are now: a snapshot must not change under the thread that sends it."""
        return msgspec.structs.replace(self, finished=dict(self.finished), refused=dict(self.refused))

    def __add__(self, other: Counters) -> Counters:
        fields: dict[str, Any] = {}
        for name in self.__struct_fields__:
            own, others = getattr(self, name), getattr(other, name)
            fields[name] = added(own, others) if isinstance(own, dict) else own + others
        return Counters(**fields)


def added(a: Mapping[K, int], b: Mapping[K, int]) -> dict[K, int]:
    """Two counts by label, together."""
    return {label: a.get(label, 0) + b.get(label, 0) for label in {**a, **b}}


class Snapshot(msgspec.Struct, frozen=True, array_like=True):
    """What admission, routing and metrics need to know of an engine after its last step."""

    step: int = 0
    interactive: PoolLoad = PoolLoad()
    bulk: PoolLoad = PoolLoad()
    scoring_rows: int = 0
    free_blocks: int = 0
    total_blocks: int = 0
    unused_slots: int = 0  # allocated to sequences and not (yet) written: less than a block each
    step_s: float = 0.0
    predicted_step_s: float = 0.0
    coefficients: tuple[float, ...] = ()  # seconds: step_time.StepTime a..e
    max_step_tokens: int = 0  # of all sequences in one step; 0: not known
    max_step_s: float = 0.0  # the step cap in force; 0: none
    read_ns: int = 0  # when the engine last read its mail, on its monotonic clock: what was sent before is in here
    counters: dict[Pool, Counters] = {}
    # of scorer requests, all pools: `admitted`, `finished` by outcome, `refused`
    scoring: Counters = msgspec.field(default_factory=Counters)
    aborts: dict[AbortReason, int] = {}  # attempts of both kinds
    is_draining: bool = False  # finishes what it holds and takes nothing new
    lost_spans: int = 0  # of traces, since it started: no room in its queue, or no collector took them


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
    """An attempt that ended without a result. `code` is the code of an `errors.HeadraceError`, `field` what was wrong
    in the request, if it was the request."""

    attempt_id: str
    code: str
    message: str
    field: str | None = None


Event: TypeAlias = Delta | HeadDone | Scored | Loaded | Failed


class Welcome(msgspec.Struct, frozen=True, array_like=True, tag="welcome"):
    """What a client must know of this engine before it sends work.

    A client that says nothing for `lease_s` loses what it has in the engine. `restarts` counts this replica's runs
    before this one by the reason that they ended, as its supervisor told it.
    """

    protocol: int
    incarnation: str
    model: str
    context_tokens: int
    dtype: str
    scorers: tuple[str, ...]
    replica: str = ""
    lease_s: float = math.inf
    restarts: dict[str, int] = {}


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
