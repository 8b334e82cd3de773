"""How long will a step take? One formula; its coefficients start from a calibration stored per device.

    t = a + b * prefill_tokens + c * decode_rows + d * decode_context_tokens + e * attended_pairs

Admission, the prefill chunk and the step cap, cost shares and the simulator use it; `step_time_fit` fits it to the
steps that an engine sees, `calibration` makes the stored ones. A term for the context that a prefill chunk reads does
not pay: error p95 9.0 % without, 8.2 % sharing `d`, 7.5 % with a sixth coefficient (bf16, 2 cores, 160 steps).
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Sequence as Items
from dataclasses import astuple, dataclass
from pathlib import Path

from core_engine.errors import ConfigurationError

CALIBRATIONS = Path(__file__).parent / "calibrations"
PRESETS = (
    CALIBRATIONS / "presets"
)  # of devices that nobody measured here, for the simulator; never chosen for an engine


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

    @classmethod
    def of(cls, coefficients: Items[float], source: str = "") -> StepTime:
        """From a to e in a row, as `coefficients` gives them."""
        a, b, c, d, e = coefficients
        return cls(a, b, c, d, e, source)

    @property
    def coefficients(self) -> tuple[float, ...]:
        return (self.a, self.b, self.c, self.d, self.e)

    def predict(self, shape: StepShape) -> float:
        """Seconds for a step of this shape; 0 for an empty one."""
        if not shape.sequences:
            return 0.0
        return self.a + self.variable_cost(shape)

    def variable_cost(self, shape: StepShape) -> float:
        """Seconds that this shape adds to a step that runs anyway: all of its own but `a`."""
        return (
            self.b * shape.prefill_tokens
            + self.c * shape.decode_rows
            + self.d * shape.decode_context_tokens
            + self.e * shape.attended_pairs
        )

    def chunk_cost(self, context: int, num_tokens: int) -> float:
        """Seconds that a prefill chunk of `num_tokens` after `context` computed ones adds to a step."""
        return self.b * num_tokens + self.e * (num_tokens * context + num_tokens * (num_tokens + 1) // 2)

    def decode_cost(self, context_tokens: int) -> float:
        """Seconds that one decode row adds to a step; `context_tokens` counts the token that it computes."""
        return self.c + self.d * context_tokens

    def largest_chunk(self, context: int, room_s: float, at_most: int) -> int:
        """The largest n <= `at_most` with `chunk_cost(context, n) <= room_s`; 0 if not even one token has room.

        The positive root of e/2 n^2 + (b + e (context + 1/2)) n = room_s, written so that e = 0 needs no case of its
        own; the rounding of floats is put right against `chunk_cost` itself.
        """
        if at_most <= 0 or not self.chunk_cost(context, 1) <= room_s:
            return 0
        if self.chunk_cost(context, at_most) <= room_s:
            return at_most
        linear = self.b + self.e * (context + 0.5)
        num_tokens = int(2 * room_s / (linear + math.sqrt(linear * linear + 2 * self.e * room_s)))
        num_tokens = min(max(num_tokens, 1), at_most)
        while self.chunk_cost(context, num_tokens) > room_s:
            num_tokens -= 1
        while self.chunk_cost(context, num_tokens + 1) <= room_s:
            num_tokens += 1
        return num_tokens

    def unloaded_prefill_s(self, num_tokens: int, max_step_tokens: int, context: int = 0) -> float:
        """Seconds to the first token of a prompt that has the device to itself, in chunks of `max_step_tokens`.

        `context` tokens of it are computed already, `num_tokens` are not.
        """
        num_steps = -(-num_tokens // max_step_tokens)
        return num_steps * self.a + self.chunk_cost(context, num_tokens)

    def unloaded_decode_s(self, context_tokens: int) -> float:
        """Seconds of a step with one decode row alone."""
        return self.a + self.decode_cost(context_tokens)

    def shortest(self) -> float:
        """Seconds of the device's shortest step: one decode row with almost no context."""
        return self.predict(chunk_shape(0, 1, is_decode=True))

    def shares(self, parts: Items[StepShape], step_s: float) -> tuple[float, ...]:
        """`step_s` split over the sequences of a step: `a` equally, the rest by each part's own terms.

        The shares add up to `step_s`. Where no term weighs anything, the split is equal.
        """
        return self.shares_of([self.variable_cost(part) for part in parts], step_s)

    def shares_of(self, costs_s: Items[float], step_s: float) -> tuple[float, ...]:
        """`shares` of parts whose own seconds (`chunk_cost`, `decode_cost`) are known already."""
        fixed = self.a / len(costs_s)
        total = self.a + sum(costs_s)
        if total <= 0:
            return tuple(step_s / len(costs_s) for _ in costs_s)
        scale = step_s / total
        return tuple((fixed + cost) * scale for cost in costs_s)

    def scaled(self, factor: float) -> StepTime:
        """The same device, `factor` times as slow."""
        return StepTime.of([value * factor for value in self.coefficients], self.source)


def load_calibration(dtype: str, path: Path | None = None, num_threads: int | None = None) -> StepTime:
    """The calibration at `path`, or the committed one for this precision whose thread count is nearest to ours.

    Raises:
        ConfigurationError: if the file is absent, not JSON, or lacks a coefficient.
    """
    path = path or _nearest(dtype, num_threads or len(os.sched_getaffinity(0)))
    try:
        stored = json.loads(path.read_bytes())
        return StepTime.of([float(stored[name]) for name in "abcde"], path.name)
    except FileNotFoundError:
        raise ConfigurationError(f"calibration {path} does not exist; unset HEADRACE_ENGINE__CALIBRATION") from None
    except OSError as error:
        raise ConfigurationError(f"calibration {path} cannot be read: {error.strerror}") from None
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigurationError(f"calibration {path} is not an object with numbers a to e: {error!r}") from error


def _nearest(dtype: str, num_threads: int) -> Path:
    stored = {path: json.loads(path.read_bytes()) for path in sorted(CALIBRATIONS.glob("*.json"))}
    fitting = [path for path, values in stored.items() if values["dtype"] == dtype]
    if not fitting:
        raise ConfigurationError(f"no committed calibration for {dtype} in {CALIBRATIONS}")
    return min(fitting, key=lambda path: abs(stored[path]["num_threads"] - num_threads))
