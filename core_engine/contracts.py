"""The words that every layer speaks: frozen, slotted, standard library only.

Doors translate their wire types to these once; the engine, the feature store and the ledger know no others. Nothing
here opens a socket, imports torch or keeps state.
"""

from __future__ import annotations

import enum
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from types import MappingProxyType
from typing import Any, TypeAlias

Scalar: TypeAlias = bool | int | float | str | datetime | None
Monotonic: TypeAlias = Callable[[], float]

EMPTY: Mapping[str, Any] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Deadline:
    """One instant on this kernel's monotonic clock; `math.inf` means no deadline.

    Made once at a door. `to_wire` and `from_wire` carry it between processes of one kernel: remaining nanoseconds and
    send time, from which the receiver subtracts the transit.
    """

    at_s: float
    clock: Monotonic = field(default=time.monotonic, compare=False, repr=False)

    @classmethod
    def after(cls, budget_s: float, clock: Monotonic = time.monotonic) -> Deadline:
        return cls(clock() + budget_s, clock)

    @classmethod
    def never(cls) -> Deadline:
        return cls(float("inf"))

    @property
    def is_finite(self) -> bool:
        return self.at_s != float("inf")

    @property
    def expired(self) -> bool:
        return self.clock() >= self.at_s

    def remaining(self) -> float:
        """Seconds left, never below zero."""
        return max(0.0, self.at_s - self.clock())

    def timeout(self) -> float | None:
        """Seconds left as asyncio wants them: None where there is no deadline."""
        return self.remaining() if self.is_finite else None

    def child(self, cap_s: float, reserve_s: float = 0.0) -> Deadline:
        """The earlier of `cap_s` from now and this deadline less `reserve_s` kept for what follows."""
        return Deadline(min(self.clock() + cap_s, self.at_s - reserve_s), self.clock)

    def to_wire(self) -> WireDeadline:
        now = self.clock()
        remaining = int(max(0.0, self.at_s - now) * 1e9) if self.is_finite else None
        return WireDeadline(remaining, int(now * 1e9))

    @classmethod
    def from_wire(cls, wire: WireDeadline, clock: Monotonic = time.monotonic) -> Deadline:
        if wire.remaining_ns is None:
            return cls(float("inf"), clock)
        now = clock()
        transit = max(0.0, now - wire.sent_ns / 1e9)
        return cls(now + wire.remaining_ns / 1e9 - transit, clock)


@dataclass(frozen=True, slots=True)
class WireDeadline:
    """A `Deadline` between two processes of one kernel. `remaining_ns` is None where there is no deadline."""

    remaining_ns: int | None
    sent_ns: int


class FeatureState(enum.StrEnum):
    """What a feature read found. `default` and `null` are values; `missing` and `stale` are their absence or age."""

    PRESENT = "present"
    DEFAULT = "default"
    NULL = "null"
    MISSING = "missing"
    STALE = "stale"


@dataclass(frozen=True, slots=True)
class FeatureValue:
    """A value with its state. `age_s` is now (or the as-of instant) less event time; None where nothing was found."""

    value: Any
    state: FeatureState
    age_s: float | None = None


@dataclass(frozen=True, slots=True)
class ReadCost:
    """What one feature read cost: hashes asked for, hashes found, payload bytes, network round trips.

    `cached` are the hashes that this process's cache answered; they are in no other count. In a cluster each node that
    was asked is a round trip. `hedges` are the round trips that asked a second time because the first was slow.
    """

    reads: int = 0
    hits: int = 0
    bytes: int = 0
    round_trips: int = 0
    cached: int = 0
    hedges: int = 0

    def __add__(self, other: ReadCost) -> ReadCost:
        return ReadCost(
            self.reads + other.reads,
            self.hits + other.hits,
            self.bytes + other.bytes,
            self.round_trips + other.round_trips,
            self.cached + other.cached,
            self.hedges + other.hedges,
        )


@dataclass(frozen=True, slots=True)
class FeatureRow:
    """Feature values of one request by reference (`view.feature`), and what the read cost.

    `failure` says why nothing could be read (store away, deadline); every value is then `missing`. `at_us` is the
    instant that states and ages were judged at, microseconds since 1970; None where nothing was. `unreadable` names the
    views whose stored value could not be read (a corrupt one, another release's); their features are `missing`.
    """

    values: Mapping[str, FeatureValue]
    cost: ReadCost = ReadCost()
    failure: str | None = None
    at_us: int | None = None
    unreadable: tuple[str, ...] = ()


def entity_key(*parts: str | int) -> str:
    """The key of an entity with one or more join keys: parts joined by `-`, with `%` and `-` inside a part escaped."""
    return "-".join(str(p).replace("%", "%25").replace("-", "%2D") for p in parts)


class Path(enum.StrEnum):
    """The door through which an attempt came; `shadow`: none, a version scored what another had answered."""

    ONLINE = "online"
    BATCH = "batch"
    STREAM = "stream"
    SHADOW = "shadow"


class Pool(enum.StrEnum):
    INTERACTIVE = "interactive"
    BULK = "bulk"


class Rung(enum.StrEnum):
    """Which step of the ladder answered."""

    MODEL = "model"
    PRECOMPUTED = "precomputed"
    STUDENT = "student"
    PRIOR = "prior"
    NONE = "none"


class Reason(enum.StrEnum):
    """Why a rung above the one that answered did not."""

    ENGINE_UNAVAILABLE = "engine_unavailable"
    ENGINE_REFUSED = "engine_refused"
    DEADLINE = "deadline"
    FEATURE_STATE = "feature_state"
    FEATURES_UNAVAILABLE = "features_unavailable"
    MODEL_ERROR = "model_error"
    NOT_PRECOMPUTED = "not_precomputed"
    PRECOMPUTED_TOO_OLD = "precomputed_too_old"
    STORE_UNAVAILABLE = "store_unavailable"
    NO_RUNG = "no_rung"
    SLOW_READER = "slow_reader"  # of a stream that was ended: its client did not read
    OVERLOADED = "overloaded"  # the door's own work is at its limit
    BREAKER_OPEN = "breaker_open"  # nothing came back of late, so that nobody asks for a while


@dataclass(frozen=True, slots=True)
class Usage:
    """Usage facts of one attempt. Tokens are counts, `_s` are seconds; zero means that nothing was used."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    computed_tokens: int = 0
    completion_tokens: int = 0
    wasted_tokens: int = 0
    rows: int = 0
    batch_size: int = 0  # rows (scorer) or sequences (LM, largest step) that shared the device call
    device_s: float = 0.0
    kv_block_s: float = 0.0
    feature: ReadCost = ReadCost()
    caller_cpu_s: float = 0.0
    queue_s: float = 0.0  # LM: arrival in the engine to its first step,
    prefill_s: float = 0.0  # from there to its first token,
    decode_s: float = 0.0  # and from there to its end


@dataclass(frozen=True, slots=True)
class StageTimes:
    """Milliseconds by stage of one prediction; `overran` names the stage that used up the budget, if any did.

    `auth_ms` is everything before the ladder (key, quota, body), `serialise_ms` the reply's bytes: a door knows them.
    `queue_ms` is all of the model's wait that was not the device, `fallback_ms` the time after the model had missed.
    """

    features_ms: float = 0.0
    queue_ms: float = 0.0
    model_ms: float = 0.0
    fallback_ms: float = 0.0
    total_ms: float = 0.0
    overran: str | None = None
    auth_ms: float = 0.0
    serialise_ms: float = 0.0


@dataclass(frozen=True, slots=True)
class StageBudget:
    """Milliseconds that each stage of one prediction was allowed; None: as long as it takes, or never asked.

    Each had the smaller of its own cap and what was left at its start, less what is kept for the stages after it.
    """

    total_ms: float | None = None
    features_ms: float | None = None
    model_ms: float | None = None
    reserve_ms: float = 0.0


@dataclass(frozen=True, slots=True)
class PredictRequest:
    """One prediction asked of one predictor. The server mints `attempt_id`; `delivery_key` is the client's own.

    `rungs`, where any are named, are the only ones of the ladder that may answer: for tests and benchmarks.
    `traceparent` is that of the caller's span where the request is traced (`core_engine.tracing`).
    """

    predictor: str
    inputs: Mapping[str, Scalar]
    attempt_id: str
    deadline: Deadline
    tenant: str = "local"
    path: Path = Path.ONLINE
    alias: str = "live"
    delivery_key: str | None = None
    rungs: tuple[Rung, ...] = ()
    traceparent: str | None = None


@dataclass(frozen=True, slots=True)
class Stored:
    """Of a precomputed answer: the generation that holds it, and how old that is."""

    generation: str
    age_s: float


@dataclass(frozen=True, slots=True)
class Prediction:
    """The answer, which rung gave it, and why no rung above it did (`reason`; None on the model rung).

    `feature_failure` says why no feature could be read, where none could: the answer may still be the model's.
    `stored` is that of the precomputed rung's answer.
    """

    predictor: str
    version: int
    value: float | str | None
    scores: Mapping[str, float]
    rung: Rung
    reason: Reason | None
    detail: str | None
    feature_states: Mapping[str, FeatureState]
    feature_ages_s: Mapping[str, float | None]
    stages: StageTimes
    usage: Usage
    feature_failure: str | None = None
    budget: StageBudget = StageBudget()
    stored: Stored | None = None

    @property
    def degraded(self) -> bool:
        return self.rung is not Rung.MODEL


class FinishReason(enum.StrEnum):
    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    DEADLINE = "deadline"
    SHED = "shed"  # it waited longer than its pool's queue may hold anything
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How the next token is chosen. Every default switches its part off; `temperature` 0 is greedy.

    A `seed` makes a request's draws its own, whatever runs beside it. `stop` strings are judged by the caller that
    detokenises; `stop_token_ids` by the engine. `logprobs` n: with every token its log-probability and the n most
    likely ones at its place (0: the token's own alone), of the model's distribution before any of the dials here.
    """

    max_tokens: int = 256
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0  # share of the most likely token's probability below which a token is out
    seed: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    min_tokens: int = 0  # no end by eos or stop_token_ids before so many
    repetition_penalty: float = 1.0  # over prompt and completion
    presence_penalty: float = 0.0  # over the completion
    frequency_penalty: float = 0.0  # over the completion
    logit_bias: tuple[tuple[int, float], ...] = ()  # (token id, added to its logit)
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    json_schema: str | None = None  # the completion is JSON text that this JSON schema accepts


class HeadKind(enum.StrEnum):
    SCORE = "score"  # probabilities over declared labels
    CLASSIFY = "classify"  # a trained linear head on the last hidden state
    EMBED = "embed"  # the hidden state itself


class Normalise(enum.StrEnum):
    LABELS = "labels"  # at each node of the labels' token trie, over its children: sums to one over the labels
    VOCAB = "vocab"  # true log-probabilities, over the whole vocabulary


class Pooling(enum.StrEnum):
    LAST = "last"
    MEAN = "mean"


@dataclass(frozen=True, slots=True)
class Head:
    """What is wanted of a prompt instead of a completion. A head is prefill only: it never enters decode."""

    kind: HeadKind
    labels: tuple[tuple[int, ...], ...] = ()  # score: each label's token ids
    normalise: Normalise = Normalise.LABELS  # score
    name: str = ""  # classify: "predictor:version" of a linear head that the engine holds
    pooling: Pooling = Pooling.LAST  # embed


@dataclass(frozen=True, slots=True)
class GenerateRequest:
    """One prompt through the engine's language model, in token ids: a completion, or what its `head` gives.

    The first `template_tokens` of the prompt belong to the template of `predictor`: its owner wrote them and no request
    changes them, so their KV blocks may be shared by tenants. All other blocks are the tenant's own.
    """

    attempt_id: str
    prompt_token_ids: tuple[int, ...]
    sampling: SamplingParams
    deadline: Deadline
    pool: Pool = Pool.INTERACTIVE
    tenant: str = "local"
    predictor: str = ""
    version: int = 0
    path: Path = Path.ONLINE
    template_tokens: int = 0
    head: Head | None = None
    traceparent: str | None = None  # of the caller's span, where the request is traced


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """A token's natural log-probability and rank (1 = most likely) at its place, and the most likely ones there."""

    token_id: int
    logprob: float
    rank: int
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class TokenDelta:
    """New tokens of one generation. The last delta has a `finish_reason` and the attempt's `usage`; that of the first
    token has its usage so far, for a caller that will end it before the engine does.

    `logprobs` has one entry per token where asked for; `prompt_logprobs` comes once, with the first token: one entry
    per prompt token, None for the first, which nothing precedes.
    """

    token_ids: tuple[int, ...]
    finish_reason: FinishReason | None = None
    usage: Usage | None = None
    detail: str | None = None
    logprobs: tuple[TokenLogprob, ...] | None = None
    prompt_logprobs: tuple[TokenLogprob | None, ...] | None = None


@dataclass(frozen=True, slots=True)
class HeadResult:
    """What a head gave: per label its probability (score), per class its (classify), or the hidden state (embed)."""

    values: tuple[float, ...]
    queue_s: float
    model_s: float
    usage: Usage


@dataclass(frozen=True, slots=True)
class ScoreRequest:
    """Rows for a torch scorer held by the engine.

    `features` is float32, little endian, C order, shape [num_rows, num_features]; NaN stands for an absent value.
    """

    attempt_id: str
    scorer: str  # "predictor:version"
    features: bytes
    num_rows: int
    deadline: Deadline
    pool: Pool = Pool.INTERACTIVE
    tenant: str = "local"
    path: Path = Path.ONLINE
    traceparent: str | None = None  # of the caller's span, where the request is traced


@dataclass(frozen=True, slots=True)
class ScoreResult:
    """One score per row, the seconds spent waiting and in the model, and the attempt's usage."""

    scores: tuple[float, ...]
    queue_s: float
    model_s: float
    usage: Usage
