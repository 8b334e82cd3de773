"""How long will a step take? One formula; its coefficients start from a calibration stored per device.

    t = a + b * prefill_tokens + c * decode_rows + d * decode_context_tokens + e * attended_pairs

The step cap, cost shares and the snapshot's readers use it. Fitting it to what is seen comes with the engine issue;
`benchmarks/step_time.py` makes the stored calibrations.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence as Items
from dataclasses import astuple, dataclass
from pathlib import Path

from core_engine.errors import ConfigurationError

CALIBRATIONS = Path(__file__).parent / "calibrations"


@dataclass(frozen=True, slots=True)
class StepShape:
    """What a step costs depends on this. `attended_pairs`: per prefill chunk, new tokens x the context they see."""

    prefill_tokens: int = 0
    decode_rows: int = 0
    decode_context_tokens: int = 0
    attended_pairs: int = 0
    sequences: int = 0

    def __add__(self, other: StepShape) -> StepShape:
        return StepShape(*(x + y for x, y in zip(astuple(self), astuple(other), strict=True)))


NOTHING = StepShape()


def chunk_shape(context: int, num_tokens: int, *, is_decode: bool) -> StepShape:
    """The shape of one sequence's part of a step: `num_tokens` new ones after `context` computed ones."""
    if is_decode:
        return StepShape(decode_rows=1, decode_context_tokens=context + 1, sequences=1)
    pairs = num_tokens * context + num_tokens * (num_tokens + 1) // 2
    return StepShape(prefill_tokens=num_tokens, attended_pairs=pairs, sequences=1)


@dataclass(frozen=True, slots=True)
class StepTime:
    """The coefficients, in seconds, of one model in one precision on one device."""

    a: float
    b: float
    c: float
    d: float
    e: float
    source: str = ""

    def __post_init__(self) -> None:
        for name in "abcde":
            value = getattr(self, name)
            if not 0 <= value < 60:
                raise ConfigurationError(f"calibration {self.source}: {name} = {value!r}, expected seconds in [0, 60)")

    @property
    def coefficients(self) -> tuple[float, ...]:
        return (self.a, self.b, self.c, self.d, self.e)

    def predict(self, shape: StepShape) -> float:
        """Seconds for a step of this shape; 0 for an empty one."""
        if not shape.sequences:
            return 0.0
        return self.a + self._variable(shape)

    def shortest(self) -> float:
        """Seconds of the device's shortest step: one decode row with almost no context."""
        return self.predict(chunk_shape(0, 1, is_decode=True))

    def shares(self, parts: Items[StepShape], step_s: float) -> tuple[float, ...]:
        """`step_s` split over the sequences of a step: `a` equally, the rest by each part's own terms.

        The shares add up to `step_s`. Where no term weighs anything, the split is equal.
        """
        weights = [self.a / len(parts) + self._variable(part) for part in parts]
        total = sum(weights)
        if total <= 0:
            return tuple(step_s / len(parts) for _ in parts)
        return tuple(step_s * weight / total for weight in weights)

    def _variable(self, shape: StepShape) -> float:
        return (
            self.b * shape.prefill_tokens
            + self.c * shape.decode_rows
            + self.d * shape.decode_context_tokens
            + self.e * shape.attended_pairs
        )


def load_calibration(dtype: str, path: Path | None = None, num_threads: int | None = None) -> StepTime:
    """The calibration at `path`, or the committed one for this precision whose thread count is nearest to ours.

    Raises:
        ConfigurationError: if the file is absent, not JSON, or lacks a coefficient.
    """
    path = path or _nearest(dtype, num_threads or len(os.sched_getaffinity(0)))
    try:
        stored = json.loads(path.read_bytes())
        a, b, c, d, e = (float(stored[name]) for name in "abcde")
        return StepTime(a, b, c, d, e, source=path.name)
    except FileNotFoundError:
        raise ConfigurationError(f"calibration {path} does not exist; unset HEADRACE_ENGINE__CALIBRATION") from None
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigurationError(f"calibration {path} is not an object with numbers a to e: {error!r}") from error


def _nearest(dtype: str, num_threads: int) -> Path:
    stored = {path: json.loads(path.read_bytes()) for path in sorted(CALIBRATIONS.glob("*.json"))}
    fitting = [path for path, values in stored.items() if values["dtype"] == dtype]
    if not fitting:
        raise ConfigurationError(f"no committed calibration for {dtype} in {CALIBRATIONS}")
    return min(fitting, key=lambda path: abs(stored[path]["num_threads"] - num_threads))
