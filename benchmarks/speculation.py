"""Where speculative decoding pays: real step times over batch sizes and acceptances, and real text at batch 1.

The engine runs in this process, without clients, and only decodes. With synthetic acceptance a draft token is right
with a given probability; what a step brings is counted by that probability, so that chance has no say but in what the
controller sees. Plain steps, drafts of fixed lengths and adaptive ones take turns on the same sequences; medians. Five
equal sides, all plain, say what the same comparison makes of noise alone.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from collections.abc import Sequence as Items
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count

from benchmarks.report import Row, conclude, options, show
from core_engine.contracts import Deadline, GenerateRequest, Pool, SamplingParams
from core_engine.llm.engine import Engine
from core_engine.llm.gguf_reader import default_model_path
from core_engine.llm.sequence import Sequence
from core_engine.llm.speculation.control import Speculation
from core_engine.llm.speculation.draft_lengths import Candidate
from core_engine.llm.speculation.prompt_lookup import PromptLookup
from core_engine.llm.speculation.synthetic import SyntheticAcceptance
from core_engine.llm.step_plan import StepPlan
from core_engine.llm.step_result import StepResult
from core_engine.llm.tokenizer import Tokenizer
from core_engine.settings import EngineSettings, PoolSettings
from headrace.engine import build_engine
from headrace.machine import machine

BATCHES, QUICK_BATCHES = (1, 2, 4, 8, 16, 32), (1, 8)
ACCEPTANCES = (0.2, 0.5, 0.8)
FIXED = (1, 2, 4)
MAX_TOKENS = 8  # of an adaptive draft
PROMPT_TOKENS = 128
MOST_TOKENS = 4000  # of a sequence; no turn brings as many
ROUNDS, QUICK_ROUNDS = 7, 1
PIECES, PIECE_S = 10, 0.05  # of a turn
WARM_UP = 100  # steps that are not counted, in which the controller learns
TEXT_TOKENS = 192
REPETITIVE = (
    "Repeat this list of flights three times, exactly as it is:\n"
    "LH 1024, Frankfurt, gate A12, 10:45, on time\nBA 0287, London, gate B07, 11:10, delayed by 25 minutes\n"
    "AF 1490, Paris, gate A03, 11:30, on time\nKL 0713, Amsterdam, gate C18, 12:05, cancelled\n"
)
PROSE = "Write a short story about a lighthouse keeper who finds a letter in a bottle."


@dataclass(slots=True)
class Side:
    """One way to run steps, and what it brought in each of its turns."""

    name: str
    speculation: Speculation | None
    rates: list[float] = field(default_factory=list)  # expected tokens per second
    seconds: float = 0.0  # of this turn
    tokens: float = 0.0  # expected ones, of this turn
    num_drafts: int = 0  # of all turns
    num_steps: int = 0

    @property
    def rate(self) -> float:
        return statistics.median(self.rates)

    def end_turn(self) -> None:
        self.rates.append(self.tokens / self.seconds)
        self.tokens = self.seconds = 0.0


class Steps:
    """An engine whose steps are timed; looks at each plan before its sequences move on."""

    def __init__(self, synthetic: SyntheticAcceptance) -> None:
        pool = PoolSettings(min_seats=1, max_seats=33, max_kv_share=1.0, max_queued=99, max_queued_tokens=1 << 20)
        settings = EngineSettings(interactive=pool, kv_cache_bytes=2 << 30, max_context_tokens=8192, prefix_cache=False)
        self.synthetic = synthetic
        self.engine, info = build_engine(settings, synthetic)
        self.precision = info.dtype
        self._plans: list[StepPlan] = []
        self._numbers = count()
        run = self.engine.runner.run

        def noted(plan: StepPlan, between: Callable[[], None]) -> StepResult:
            self._plans.append(plan)
            return run(plan, between)

        self.engine.runner.run = noted  # type: ignore[method-assign]

    def run(self, side: Side, least_s: float, least_steps: int = 1) -> None:
        """Steps until `least_s` have passed, `least_steps` of them at the least."""
        self.engine.scheduler.speculation = side.speculation
        start, seconds = time.perf_counter(), 0.0
        while seconds < least_s or len(self._plans) < least_steps:
            self.engine.step()
            seconds = time.perf_counter() - start
        drafts = [len(item.draft) for plan in self._plans for item in plan.decodes]
        p = self.synthetic.probability
        side.tokens += sum(1 + Candidate(length, p).expected(length) for length in drafts)
        side.seconds += seconds
        side.num_drafts += sum(drafts)
        side.num_steps += len(self._plans)
        self._plans.clear()

    @contextmanager
    def decoding(self, batch: int) -> Iterator[None]:
        """So many new sequences decode."""
        self.engine.scheduler.speculation = None
        sampling = SamplingParams(max_tokens=MOST_TOKENS, ignore_eos=True)
        sequences: list[Sequence] = []
        for _ in range(batch):
            number = next(self._numbers)  # what is accepted of a sequence's drafts is drawn by its id
            prompt = tuple(1000 + (37 * number + place) % 20_000 for place in range(PROMPT_TOKENS))
            sequences.append(self.engine.add(GenerateRequest(f"bench-{number}", prompt, sampling, Deadline.never())))
        while not all(sequence.is_decoding for sequence in sequences):
            self.engine.step()
        self._plans.clear()
        yield
        for sequence in sequences:
            self.engine.abort(sequence)


def cell(steps: Steps, batch: int, acceptance: float, rounds: int) -> Row:
    """One batch size at one acceptance."""
    steps.synthetic.probability = acceptance
    fixed = [Side(f"K={k}", Speculation(steps.synthetic, k, is_adaptive=False)) for k in FIXED]
    plain, adaptive = Side("plain", None), Side("adaptive", Speculation(steps.synthetic, MAX_TOKENS))
    with steps.decoding(batch):
        steps.run(Side("warm-up", adaptive.speculation), 0.0, WARM_UP)
    for _ in range(rounds):
        take_turns(steps, (plain, *fixed, adaptive), batch)
    return {
        "batch": batch,
        "acceptance": acceptance,
        "plain step ms": 1e3 * batch / plain.rate,
        "plain tok/s": plain.rate,
        **{f"{side.name} tok/s": side.rate for side in fixed},
        "adaptive tok/s": adaptive.rate,
        "its drafts per step": adaptive.num_drafts / adaptive.num_steps,
        "adaptive / best": adaptive.rate / max(side.rate for side in (plain, *fixed)),
    }


def take_turns(steps: Steps, sides: Items[Side], batch: int) -> None:
    """One turn of every side, piece by piece, since the machine changes within a second.

    Every other time backwards, since contexts grow: by some percent of a step from the first side to the last.
    """
    with steps.decoding(batch):
        for number in range(PIECES):
            for side in sides if number % 2 == 0 else reversed(sides):
                steps.run(side, PIECE_S)
    for side in sides:
        side.end_turn()


def equal_sides(steps: Steps, batch: int, rounds: int) -> Row:
    """Plain steps against the best of four times the same."""
    sides = [Side(f"plain {number}", None) for number in range(2 + len(FIXED))]
    for _ in range(rounds):
        take_turns(steps, sides, batch)
    rates = [side.rate for side in sides]
    return {
        "batch": batch,
        "last / best of the others": rates[-1] / max(rates[:-1]),
        "slowest / fastest": min(rates) / max(rates),
    }


def text_row(engine: Engine, tokenizer: Tokenizer, name: str, prompt: str, rounds: int) -> Row:
    """One stream of real text at batch 1, greedy, by prompt lookup and without, in turns."""
    ids = tuple(tokenizer.apply_chat_template([{"role": "user", "content": prompt}]))
    sampling = SamplingParams(max_tokens=TEXT_TOKENS, ignore_eos=True)
    rates: dict[bool, list[float]] = {False: [], True: []}
    texts, counters = set[tuple[int, ...]](), engine.scheduler.counters[Pool.INTERACTIVE]
    before = counters.copy()
    for turn in range(2 * rounds):
        speculates = turn % 2 == 1
        engine.scheduler.speculation = Speculation(PromptLookup(), MAX_TOKENS) if speculates else None
        sequence = engine.add(GenerateRequest(f"{name}-{turn}", ids, sampling, Deadline.never()))
        while not sequence.is_decoding:
            engine.step()
        start = time.perf_counter()
        while engine.has_work:
            engine.step()
        rates[speculates].append((TEXT_TOKENS - 1) / (time.perf_counter() - start))
        texts.add(tuple(sequence.token_ids))
    assert len(texts) == 1, "the text differs with and without drafts"
    return {
        "text": name,
        "tokens": TEXT_TOKENS,
        "plain tok/s": statistics.median(rates[False]),
        "prompt lookup tok/s": statistics.median(rates[True]),
        "speed-up": statistics.median(rates[True]) / statistics.median(rates[False]),
        "drafted": (counters.draft_tokens - before.draft_tokens) / rounds,
        "accepted": (counters.accepted_tokens - before.accepted_tokens) / rounds,
    }


def stops_paying(rows: list[Row], acceptance: float) -> float:
    """The smallest batch size at which no fixed draft length is faster than none; infinite if it always pays."""
    for row in rows:
        if row["acceptance"] == acceptance and max(row[f"K={k} tok/s"] for k in FIXED) <= row["plain tok/s"]:
            return float(row["batch"])
    return float("inf")


def main() -> None:
    args = options(__doc__ or "")
    rounds = QUICK_ROUNDS if args.quick else ROUNDS
    steps = Steps(SyntheticAcceptance(0.0))
    batches = QUICK_BATCHES if args.quick else BATCHES
    rows = [cell(steps, batch, acceptance, rounds) for acceptance in ACCEPTANCES for batch in batches]
    show(f"Speculation by synthetic acceptance, SmolLM2-135M-Instruct, {steps.precision}\n{machine()}", rows)
    equal = [equal_sides(steps, batch, rounds) for batch in batches]
    show("What noise alone does: five equal sides, all plain", equal)
    engine, _ = build_engine(EngineSettings(prefix_cache=False))
    tokenizer = Tokenizer.from_path(default_model_path())
    texts = [
        text_row(engine, tokenizer, name, prompt, rounds)
        for name, prompt in (("repetitive", REPETITIVE), ("prose", PROSE))
    ]
    show("Prompt lookup at batch 1, greedy", texts)
    headline = {
        "adaptive_over_best_min": min(row["adaptive / best"] for row in rows),
        "equal_over_best_min": min(row["last / best of the others"] for row in equal),
    }
    headline |= {f"speedup_{row['text']}_b1": row["speed-up"] for row in texts}
    headline |= {f"stops_paying_at_{acceptance}": stops_paying(rows, acceptance) for acceptance in ACCEPTANCES}
    conclude([*rows, *equal, *texts], headline, args.json)


if __name__ == "__main__":
    main()
