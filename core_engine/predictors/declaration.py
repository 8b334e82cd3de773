"""What a predictor is: one immutable declaration, written in Python, stored as JSON by the registry.

It says which inputs a request carries, which features are read for it, how both become columns, which model scores
them, and what answers when the model cannot. It runs nothing.
"""

from __future__ import annotations

import enum
import hashlib
from pathlib import Path
from typing import TypeAlias

import msgspec

from core_engine.contracts import Normalise, Pool, Rung


class Declared(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of everything declared: frozen, keyword only, and a key that is not known is refused."""


class InputKind(enum.StrEnum):
    STRING = "string"
    INT = "int"
    FLOAT = "float"
    BOOL = "bool"
    TIMESTAMP = "timestamp"  # timezone-aware; a naive one is refused


class InputField(Declared, frozen=True, kw_only=True):
    """One field of a request. Bounds are inclusive; `max_length` counts characters of a string."""

    name: str
    kind: InputKind
    required: bool = True
    minimum: float | None = None
    maximum: float | None = None
    max_length: int = 64
    description: str = ""


class EntityUse(Declared, frozen=True, kw_only=True):
    """Which input fields, in order, make the key of an entity (`contracts.entity_key`)."""

    entity: str
    fields: tuple[str, ...]


class OnState(enum.StrEnum):
    """What the predictor does with a feature in some state."""

    USE = "use"  # pass on what is there: the stale value, or an absent one
    DEFAULT = "default"  # the default declared here
    NEXT_RUNG = "next_rung"  # the model rung may not use this row
    REFUSE = "refuse"  # nobody may: the answer is rung none


class FeatureUse(Declared, frozen=True, kw_only=True):
    """One feature and what its absence means to this predictor.

    `ref` is `view.feature`, read by the key of the view's own entity, or `view@entity.feature`, read by that of another
    one of the predictor's: the weather at a flight's destination is `weather@dest.wind`.
    """

    ref: str
    on_missing: OnState = OnState.USE
    on_stale: OnState = OnState.USE
    on_null: OnState = OnState.USE
    default: float | str | None = None


class ColumnKind(enum.StrEnum):
    NUMERIC = "numeric"
    CATEGORY = "category"  # index into `values`, -1 where unknown
    HOUR = "hour"  # wall-clock hour + minute / 60 of an aware timestamp, in its own offset
    WEEKDAY = "weekday"  # 0 = Monday, in its own offset
    YEARDAY = "yearday"  # day of the year, 1 to 366, in its own offset


class Column(Declared, frozen=True, kw_only=True):
    """One column of the model's input: from an input field or a feature reference (`source`)."""

    name: str
    kind: ColumnKind
    source: str
    values: tuple[str, ...] = ()


class Artifact(Declared, frozen=True, kw_only=True):
    """A file and its digest; a file whose digest differs is never loaded."""

    path: str
    sha256: str

    @classmethod
    def of(cls, path: Path) -> Artifact:
        with path.open("rb") as file:
            return cls(path=str(path.resolve()), sha256=hashlib.file_digest(file, "sha256").hexdigest())


class TorchScorer(Declared, frozen=True, kw_only=True, tag="torch_scorer"):
    """A small torch model in safetensors with a declared architecture; runs in the engine process."""

    artifact: Artifact


class LMGenerate(Declared, frozen=True, kw_only=True, tag="lm_generate"):
    """The engine's language model under the platform's own system prompt.

    `prompt` makes the user's message of a row from its inputs, as `str.format` does; a predictor without one is asked
    in conversations only.
    """

    system_prompt: str
    max_tokens: int = 256
    prompt: str = ""


class LabelText(Declared, frozen=True, kw_only=True):
    """One label: the name of its score, and the text by which the language model would say it."""

    name: str
    text: str


class LMScore(Declared, frozen=True, kw_only=True, tag="lm_score"):
    """The engine's language model choosing between declared labels under the platform's own system prompt.

    `prompt` makes the user's message from inputs and features (`{origin}`, `{view.feature:.0f}`) as `str.format` does;
    what is absent reads "unknown". The predictor's `label` names the one whose probability is the value.
    """

    system_prompt: str
    prompt: str
    labels: tuple[LabelText, ...]
    normalise: Normalise = Normalise.LABELS


Model: TypeAlias = TorchScorer | LMGenerate | LMScore


class Student(Declared, frozen=True, kw_only=True):
    """A small ONNX model over the same columns; runs in the calling process on one thread."""

    artifact: Artifact


class Prior(Declared, frozen=True, kw_only=True):
    """Base rates by segment: JSON object of `entity_key(*segment)` to rate, and the rate of everything else."""

    artifact: Artifact
    segment: tuple[str, ...]  # column names, category or hour (whole hours)
    fallback: float


class Precomputed(Declared, frozen=True, kw_only=True):
    """What a batch job stores: under the key that these input fields make, in order; too old above `max_age_s`."""

    key: tuple[str, ...]
    max_age_s: float


class Objective(enum.StrEnum):
    LATENCY = "latency"  # interactive pool
    THROUGHPUT = "throughput"  # bulk pool


class Predictor(Declared, frozen=True, kw_only=True):
    """One version of one predictor. `ladder` is the order in which rungs are tried.

    `fail_open` false means that nothing below the model rung may answer: the reply is rung none. `freshness_s` is how
    old an answer may be; `budget_ms` how long a caller waits at most, who may ask for less; `reserve_ms` is kept for
    the rungs below the model. `threshold` is the score from which on callers act: it decides nothing here, and two
    versions are compared by it.
    """

    name: str
    version: int
    owner: str
    model: Model
    inputs: tuple[InputField, ...] = ()
    entities: tuple[EntityUse, ...] = ()
    features: tuple[FeatureUse, ...] = ()
    columns: tuple[Column, ...] = ()
    label: str = "positive"
    student: Student | None = None
    prior: Prior | None = None
    precomputed: Precomputed | None = None
    ladder: tuple[Rung, ...] = (Rung.MODEL,)
    objective: Objective = Objective.LATENCY
    freshness_s: float = 0.0
    budget_ms: float = 50.0
    reserve_ms: float = 5.0
    fail_open: bool = True
    threshold: float | None = None
    description: str = ""

    @property
    def id(self) -> str:
        """`name:version`, the name of its scorer in the engine."""
        return f"{self.name}:{self.version}"

    def to_json(self) -> bytes:
        """Canonical JSON: the same declaration gives the same bytes, before and after a round trip."""
        declared = msgspec.json.decode(msgspec.json.encode(self), type=Predictor)  # 900 for a float becomes 900.0
        return msgspec.json.encode(declared, order="deterministic")

    @property
    def pool(self) -> Pool:
        """Where in the engine its work waits, by its objective."""
        return Pool.INTERACTIVE if self.objective is Objective.LATENCY else Pool.BULK

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the canonical JSON; a served version never changes it."""
        return hashlib.sha256(self.to_json()).hexdigest()
