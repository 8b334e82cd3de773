"""Who owns what, and what is left when it ends: no sockets, a real engine under it."""

from __future__ import annotations

import pytest

from core_engine.contracts import Deadline, FinishReason, GenerateRequest, Pool, SamplingParams, ScoreRequest
from core_engine.costs.facts import DeviceFact, Fact
from core_engine.costs.meter import ReplicaMeter
from core_engine.errors import InvalidRequest, UnknownName
from core_engine.llm import messages as wire
from core_engine.llm.attempts import Attempts
from core_engine.llm.engine import Engine
from core_engine.llm.messages import AbortReason
from core_engine.llm.scorers import ScorerHost
from core_engine.llm.translation import generate_message, score_message
from tests.core_engine.llm.running import SumScorer
from tests.core_engine.llm.tiny import CONFIG, request, tiny_engine

ME, YOU = b"me", b"you"


class Held:
    """Attempts on an engine and a scorer, and the facts that they wrote."""

    def __init__(self, engine: Engine | None = None) -> None:
        self.engine = engine or tiny_engine()
        self.scorers, self.spooled = ScorerHost(), list[Fact]()
        self.scorers.put("sum:1", SumScorer())
        meter = ReplicaMeter("engine-0", "local", self.spooled.append)
        self.attempts = Attempts(self.engine, self.scorers, meter, CONFIG.vocab_size)

    def generate(self, client: bytes, asked: GenerateRequest) -> None:
        self.attempts.add(client, generate_message(asked))

    def score(self, client: bytes, attempt_id: str, scorer: str = "sum:1") -> None:
        self.attempts.add(client, score_message(ScoreRequest(attempt_id, scorer, bytes(12), 1, Deadline.never())))

    @property
    def outcomes(self) -> list[str]:
        return [fact.outcome for fact in self.spooled if isinstance(fact, DeviceFact)]


def test_an_attempt_belongs_to_the_client_that_sent_it() -> None:
    held = Held()
    held.generate(ME, request(attempt_id="a"))
    held.score(YOU, "s")
    assert (held.attempts.owner("a"), held.attempts.owner("s"), held.attempts.owner("x")) == (ME, YOU, None)
    assert held.attempts.clients == {ME, YOU}
    assert len(held.attempts) == 2


def test_nobody_ends_another_s_attempt_and_an_end_comes_once() -> None:
    held = Held()
    held.generate(ME, request(attempt_id="a"))
    held.attempts.abort(YOU, "a")
    assert held.attempts.owner("a") == ME
    for _ in range(2):
        held.attempts.abort(ME, "a")
    assert not held.engine.has_work
    assert held.attempts.aborts == {AbortReason.CALLER: 1}
    assert held.outcomes == ["abort"]


def test_an_id_in_flight_is_refused_whatever_kind_it_is() -> None:
    held = Held()
    held.score(ME, "a")
    for client in (ME, YOU):
        with pytest.raises(InvalidRequest, match="attempt a is in flight"):
            held.generate(client, request(attempt_id="a"))
    assert held.attempts.owner("a") == ME


def test_what_is_refused_leaves_nothing() -> None:
    held = Held()
    with pytest.raises(InvalidRequest, match="temperature"):
        held.generate(ME, request(sampling=SamplingParams(temperature=-1)))
    with pytest.raises(UnknownName):
        held.score(ME, "s", scorer="nope:1")
    assert len(held.attempts) == 0
    assert not held.engine.has_work
    assert held.attempts.scoring.refused == {UnknownName.code: 1}
    assert held.attempts.scoring.admitted == 0


def test_a_client_that_goes_takes_its_own_with_it() -> None:
    held = Held()
    for number in range(3):
        held.generate(ME, request(attempt_id=f"mine-{number}"))
    held.score(ME, "my rows")
    held.generate(YOU, request(attempt_id="yours"))
    ended = held.attempts.drop(ME, AbortReason.LEASE)
    assert sorted(ended) == ["mine-0", "mine-1", "mine-2", "my rows"]
    assert held.attempts.aborts == {AbortReason.LEASE: 4}
    assert held.attempts.clients == {YOU}
    assert held.scorers.num_rows == 0
    assert held.attempts.scoring.finished == {"abort": 1}
    assert held.attempts.drop(ME, AbortReason.LEASE) == []


def test_a_scored_request_is_counted_and_returns_its_client() -> None:
    held = Held()
    held.score(ME, "s")
    (outcome,) = held.scorers.run()
    assert held.attempts.scored(outcome) == ME
    assert held.attempts.scoring.finished == {"scored": 1}
    assert held.outcomes == ["scored"]
    assert len(held.attempts) == 0


def test_a_failed_sequence_ends_as_an_error_in_counts_and_facts() -> None:
    held = Held()
    held.generate(ME, request(attempt_id="a"))
    held.generate(ME, request(attempt_id="waits", max_tokens=3))
    held.engine.step()
    for sequence in held.attempts.in_step():
        assert held.attempts.fail(sequence) == ME
    assert held.engine.scheduler.counters[Pool.INTERACTIVE].finished == {FinishReason.ERROR: 2}
    assert held.outcomes == ["error", "error"]
    assert len(held.attempts) == 0


def test_usage_tells_the_times_of_a_life_and_they_add_up_to_it() -> None:
    now = [100.0]
    held = Held(tiny_engine(clock=lambda: now[0]))
    held.generate(ME, request(attempt_id="a", max_tokens=2))
    (sequence,) = held.engine.scheduler.sequences()
    now[0] += 3.0
    assert held.attempts.usage(sequence).queue_s == 3.0, "it still waits"
    held.engine.step()
    now[0] += 1.0
    held.engine.step()
    now[0] += 0.5
    usage = held.attempts.usage(sequence)
    assert usage.queue_s == 3.0
    assert usage.queue_s + usage.prefill_s + usage.decode_s == pytest.approx(4.5)
    assert usage.decode_s == pytest.approx(1.5)


def test_what_was_not_even_looked_at_is_counted_by_its_kind() -> None:
    held = Held()
    held.attempts.refuse(generate_message(request(pool=Pool.BULK)), "draining")
    held.attempts.refuse(score_message(ScoreRequest("s", "sum:1", bytes(12), 1, Deadline.never())), "draining")
    held.attempts.refuse(wire.LoadScorer("l", "sum:2", "f", "0"), "draining")
    assert held.engine.scheduler.counters[Pool.BULK].refused == {"draining": 1}
    assert held.engine.scheduler.counters[Pool.INTERACTIVE].refused == {}
    assert held.attempts.scoring.refused == {"draining": 1}
