"""Will a request be in time? Predicted in the caller's process from the engine's last snapshot, so that a refusal costs
microseconds; the engine, which knows more, looks again at its next step boundary. No clock, no socket, no torch.

The prediction follows the engine's steps in the mean: all prompts of the same class that are there come first, in
chunks of what decode leaves of a step; then decode, with everybody that has a seat by then. Prompts that come later,
and those of bulk, take the share of decode's time that such have taken of late. The order of deadlines within a class
is not known. `benchmarks/admission.py` sets forecasts against what came.

How many tokens a completion will have is a guess (`PoolLoad.completion_ratio`), and a guess alone refuses nobody: while
nothing of its class is there, a request is held only to what it is certain to need. So a wrong guess cannot keep the
requests away that would correct it.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from msgspec.structs import replace

from core_engine.contracts import GenerateRequest, Pool
from core_engine.errors import EngineRefused
from core_engine.llm.messages import PoolLoad, Snapshot
from core_engine.llm.step_time import StepTime

MOST_SHARE = 0.9  # of coming time, taken by prompts that are not there yet


@dataclass(frozen=True, slots=True)
class Work:
    """What a request asks of an engine. `certain_tokens` of the completion come whatever the model says."""

    pool: Pool
    prompt_tokens: int
    certain_tokens: int
    max_tokens: int
    cached_tokens: int = 0  # of the prompt, taken to be in the prefix cache

    @classmethod
    def of(cls, request: GenerateRequest, cached_share: float = 0.0) -> Work:
        """Of the prompt, its template or `cached_share`, whichever is more, is taken to be in the prefix cache.

        Optimistic: the engine knows better, and the last prompt token is always computed.
        """
        num_prompt, sampling = len(request.prompt_token_ids), request.sampling
        cached = max(0, min(max(request.template_tokens, int(cached_share * num_prompt)), num_prompt - 1))
        if request.head is not None:
            return cls(request.pool, num_prompt, 0, 0, cached)
        never_stops = sampling.ignore_eos and not sampling.stop_token_ids and not sampling.stop
        certain = sampling.max_tokens if never_stops else min(max(1, sampling.min_tokens), sampling.max_tokens)
        return cls(request.pool, num_prompt, certain, sampling.max_tokens, cached)

    @property
    def new_tokens(self) -> int:
        """Prompt tokens to compute."""
        return self.prompt_tokens - self.cached_tokens

    @property
    def pairs(self) -> int:
        """Attended pairs of the prompt tokens to compute."""
        new = self.new_tokens
        return new * self.cached_tokens + new * (new + 1) // 2


@dataclass(frozen=True, slots=True)
class Forecast:
    """Seconds from now until the first token (of a head: its result) and until the last."""

    first_token_s: float
    finish_s: float


class Unseen:
    """What a client has sent and no snapshot shows yet, oldest first."""

    def __init__(self) -> None:
        self._sent: deque[tuple[int, Work]] = deque()

    def admit(
        self, request: GenerateRequest, snapshot: Snapshot, now_ns: int, margin_s: float = 0.0
    ) -> Forecast | None:
        """Count `request`, about to be sent at `now_ns`; one with a deadline goes through `check_admission` first."""
        work = Work.of(request, _cached_share(snapshot, request.pool))
        forecast = None
        if request.deadline.is_finite:
            forecast = check_admission(snapshot, self.works, work, request.deadline.remaining(), margin_s)
        self._sent.append((now_ns, work))
        return forecast

    def see(self, snapshot: Snapshot) -> None:
        """Forget what was sent before the engine last read its mail: it is in the snapshot."""
        while self._sent and self._sent[0][0] < snapshot.read_ns:
            self._sent.popleft()

    def clear(self) -> None:
        self._sent.clear()

    @property
    def works(self) -> list[Work]:
        return [work for _, work in self._sent]


def check_admission(
    snapshot: Snapshot, unseen: Iterable[Work], work: Work, remaining_s: float, margin_s: float = 0.0
) -> Forecast | None:
    """Refuse `work` if it is predicted to finish less than `margin_s` before `remaining_s` are over; an engine that has
    told no step time takes all, and nothing is predicted.

    Raises:
        EngineRefused: with the predicted finish, what is left, and the load that they follow from.
    """
    if not snapshot.coefficients or not snapshot.max_step_tokens:
        return None
    loaded = with_unseen(snapshot, unseen)
    own = _load(loaded, work.pool)
    completion = work.certain_tokens
    if own.waiting + own.running:
        completion = max(completion, round(own.completion_ratio * work.max_tokens))
    forecast = predict_finish(loaded, work, completion)
    if forecast.finish_s + margin_s > remaining_s * (1 + 1e-9):
        late = f" and up to {margin_s:.3f} s later" if margin_s else ""
        raise EngineRefused(
            f"predicted to finish in {forecast.finish_s:.3f} s{late} (first token in {forecast.first_token_s:.3f} s), "
            f"{remaining_s:.3f} s are left: {work.prompt_tokens} prompt and {completion} completion tokens, behind "
            f"{own.waiting} waiting {work.pool} requests with {own.waiting_tokens} prompt tokens, {own.running} running"
        )
    return forecast


def with_unseen(snapshot: Snapshot, unseen: Iterable[Work]) -> Snapshot:
    """The snapshot as it will be when the engine has read what it was sent: `unseen` waits as well."""
    new: dict[Pool, list[Work]] = {pool: [] for pool in Pool}
    for work in unseen:
        new[work.pool].append(work)
    return replace(
        snapshot,
        interactive=_joined(snapshot.interactive, new[Pool.INTERACTIVE]),
        bulk=_joined(snapshot.bulk, new[Pool.BULK]),
    )


def _joined(load: PoolLoad, works: list[Work]) -> PoolLoad:
    if not works:
        return load
    return replace(
        load,
        waiting=load.waiting + len(works),
        waiting_tokens=load.waiting_tokens + sum(work.new_tokens for work in works),
        pairs_left=load.pairs_left + sum(work.pairs for work in works),
        completion_tokens_left=load.completion_tokens_left + sum(work.max_tokens for work in works),
    )


def predict_finish(snapshot: Snapshot, work: Work, completion_tokens: int) -> Forecast:
    """When `work`, sent now, has its first token and its last, if it brings `completion_tokens`.

    Exact on an idle engine, with its coefficients. Never earlier for a longer prompt, nor for one more sequence ahead
    that is no shorter than those there in the mean.
    """
    return _Steps(snapshot, work).forecast(completion_tokens)


class _Steps:
    """The mean step of a loaded engine, as seen by one request that joins it."""

    def __init__(self, snapshot: Snapshot, work: Work) -> None:
        self.work = work
        self.model = StepTime.of(snapshot.coefficients)
        self.snapshot = snapshot
        self.own = _load(snapshot, work.pool)
        self.is_interactive = work.pool is Pool.INTERACTIVE
        self.other = snapshot.bulk if self.is_interactive else snapshot.interactive
        self.seats = self.own.max_seats or math.inf
        self.rows = self.own.decode_rows + self.other.decode_rows
        self.context = self.own.decode_context_tokens + self.other.decode_context_tokens
        self.room = self._prefill_room()

    def forecast(self, completion_tokens: int) -> Forecast:
        first_s = self._first_token_s()
        if completion_tokens <= 1:
            return Forecast(first_s, first_s)
        return Forecast(first_s, first_s + self._decode_s(completion_tokens))

    def _prefill_room(self) -> int:
        """Prompt tokens that fit into a step beside its decode rows, within its token budget and its cap."""
        room = max(1, self.snapshot.max_step_tokens - self.rows)
        if not self.snapshot.max_step_s:
            return room
        left_s = self.snapshot.max_step_s - self._step_s(self.rows, self.context)
        return max(1, self.model.largest_chunk(0, left_s, room))

    def _step_s(self, rows: float, context: float) -> float:
        """A step of decode rows only; under a cap the rows of bulk give way."""
        model, cap_s = self.model, self.snapshot.max_step_s
        full_s = model.a + model.c * rows + model.d * context
        if not cap_s or not self.is_interactive:
            return full_s
        bulk = self.snapshot.bulk
        return max(full_s - model.c * bulk.decode_rows - model.d * bulk.decode_context_tokens, min(full_s, cap_s))

    def _first_token_s(self) -> float:
        """The step under way, then the steps that hold the wait for a seat, the prompts ahead and one's own."""
        ahead = self.own.waiting_tokens + self.own.prefill_tokens
        pairs = self.own.pairs_left + self.work.pairs
        if not self.is_interactive:
            ahead += self.other.waiting_tokens + self.other.prefill_tokens
            pairs += self.other.pairs_left
        tokens = ahead + self.work.new_tokens
        prefill_s = self.model.b * tokens + self.model.e * pairs
        step_s = self._step_s(self.rows, self.context)
        steps = max(math.ceil(tokens / self.room), self._steps_to_a_seat())
        return self._residual_s() + steps * step_s + prefill_s

    def _decode_s(self, completion_tokens: int) -> float:
        """The steps after the first token's, with everybody who has a seat by then."""
        own, work, steps = self.own, self.work, completion_tokens - 1
        ahead = own.running + own.waiting
        seated = min(ahead, self.seats - 1)
        joining = max(0.0, min(own.waiting, self.seats - own.running))
        context = float(own.decode_context_tokens + own.prefill_tokens + self.other.decode_context_tokens)
        context += own.waiting_tokens * joining / max(own.waiting, 1)
        context += work.prompt_tokens + completion_tokens / 2  # the mean over one's own steps
        step_s = self._step_s(seated + 1 + self.other.decode_rows, context)
        return steps * step_s / (1 - self._share_of_later())

    def _steps_to_a_seat(self) -> float:
        """Sequences end one after the other, evenly, over twice the mean of what is left of them."""
        own = self.own
        ahead = own.running + own.waiting
        to_end = ahead + 1 - self.seats
        if to_end <= 0 or not ahead:
            return 0.0
        mean = own.completion_ratio * own.completion_tokens_left / ahead
        of_running = min(to_end, own.running)
        return mean * (2 * of_running / (own.running + 1) + (to_end - of_running) / self.seats)

    def _share_of_later(self) -> float:
        """Of decode's time, what prompts that come later will take; none while nobody of the class is there."""
        if not self.own.waiting + self.own.running:
            return 0.0
        return min(self.own.prefill_share + self.other.prefill_share, MOST_SHARE)

    def _residual_s(self) -> float:
        """Half of the step that is under way, if there is one."""
        return self.snapshot.predicted_step_s / 2 if self.own.running + self.other.running else 0.0


def _cached_share(snapshot: Snapshot, pool: Pool) -> float:
    """Of all prompt tokens of this class so far, those that the prefix cache had."""
    counters = snapshot.counters.get(pool)
    return counters.cached_tokens / counters.prompt_tokens if counters and counters.prompt_tokens else 0.0


def _load(snapshot: Snapshot, pool: Pool) -> PoolLoad:
    return snapshot.interactive if pool is Pool.INTERACTIVE else snapshot.bulk
