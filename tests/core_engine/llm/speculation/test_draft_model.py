"""A draft model that is the model itself guesses everything right; another one, or no room for it, changes no token."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import count

import pytest
import torch

from core_engine.contracts import GenerateRequest, Pool, SamplingParams
from core_engine.llm.decoder import Decoder
from core_engine.llm.engine import Engine
from core_engine.llm.sampler import Sampler
from core_engine.llm.sequence import Sequence
from core_engine.llm.speculation.draft_model import MAX_CATCH_UP, DraftModel
from core_engine.llm.speculation.proposer import NOTHING, Offer
from core_engine.llm.step_plan import Scheduled
from tests.core_engine.llm.speculating import speculate
from tests.core_engine.llm.tiny import CONFIG, request, run_all, tiny_engine, tiny_weights

SMALL = replace(CONFIG, num_layers=1)


def same() -> Decoder:
    return Decoder(CONFIG, tiny_weights())


def another() -> Decoder:
    return Decoder(SMALL, tiny_weights(SMALL))


def drafting(decoder: Decoder, num_blocks: int = 129, **options: int) -> tuple[Engine, DraftModel]:
    engine = tiny_engine(**options)  # type: ignore[arg-type]
    drafts = DraftModel(decoder, engine.runner.sampler, num_blocks, block_size=4)
    speculate(engine, drafts)
    return engine, drafts


def requests(num: int = 5, **dials: float) -> list[GenerateRequest]:
    rng = random.Random(3)
    sampling = SamplingParams(max_tokens=30, ignore_eos=True, **dials)  # type: ignore[arg-type]
    return [
        request([rng.randrange(3, 90) for _ in range(1 + 4 * n)], sampling=replace(sampling, seed=n))
        for n in range(num)
    ]


@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_the_model_itself_as_draft_model_is_always_right(temperature: float) -> None:
    asked = requests(temperature=temperature)
    expected = run_all(tiny_engine(), asked)
    engine, drafts = drafting(same())
    assert run_all(engine, asked) == expected
    counters = engine.scheduler.counters[Pool.INTERACTIVE]
    assert counters.accepted_tokens == counters.draft_tokens > 60
    assert (drafts.num_sequences, drafts.num_free_blocks) == (0, 128)


@pytest.mark.parametrize("temperature", [0.0, 0.9])
@pytest.mark.parametrize("num_blocks", [2, 12, 129])
@pytest.mark.parametrize("max_step_tokens", [8, 64])
def test_another_model_and_too_small_a_cache_change_no_token(
    temperature: float, num_blocks: int, max_step_tokens: int
) -> None:
    asked = requests(temperature=temperature)
    expected = run_all(tiny_engine(), asked)
    engine, drafts = drafting(another(), num_blocks, max_step_tokens=max_step_tokens)
    assert run_all(engine, asked) == expected
    counters = engine.scheduler.counters[Pool.INTERACTIVE]
    assert counters.accepted_tokens < counters.draft_tokens or num_blocks == 2
    assert (drafts.num_sequences, drafts.num_free_blocks) == (0, num_blocks - 1)


def decoding(token_ids: list[int], max_tokens: int = 200) -> Sequence:
    sequence = Sequence(request(token_ids[:-1], max_tokens), 0.0)
    sequence.append(token_ids[-1], frozenset())
    sequence.num_computed_tokens = sequence.num_tokens - 1
    return sequence


def propose(drafts: DraftModel, sequence: Sequence, num_tokens: int) -> list[int]:
    return drafts.propose([Scheduled(sequence, 1 + num_tokens)])[0]


def test_a_guess_is_the_same_whatever_was_guessed_before_and_however_much_of_it_came_true() -> None:
    rng = random.Random(0)
    kept = DraftModel(another(), Sampler(frozenset()), 129, 4)
    sequence = decoding([5, 6, 7, 8])
    for _ in range(20):
        draft = propose(kept, sequence, rng.randint(1, 5))
        fresh = DraftModel(another(), Sampler(frozenset()), 129, 4)
        assert draft == propose(fresh, decoding(list(sequence.token_ids)), len(draft))
        for token in draft[: rng.randint(0, len(draft))]:
            sequence.append(token, frozenset())
        for _ in range(rng.randint(1, 3)):  # wrong ones, or plain steps without a draft
            sequence.append(rng.randrange(3, 90), frozenset())
        sequence.num_computed_tokens = sequence.num_tokens - 1


def test_a_long_prompt_is_caught_up_with_over_several_steps_without_a_guess() -> None:
    config = replace(SMALL, max_positions=2048)
    drafts = DraftModel(Decoder(config, tiny_weights(config)), Sampler(frozenset()), 400, 4)
    sequence = decoding([3 + n % 80 for n in range(2 * MAX_CATCH_UP + 10)])
    assert [len(propose(drafts, sequence, 3)) for _ in range(3)] == [0, 0, 3]


def test_a_sequence_that_finds_no_blocks_gets_no_offer() -> None:
    drafts = DraftModel(another(), Sampler(frozenset()), 4, 4)  # three blocks of four tokens
    assert drafts.offer(decoding([5] * 8), 4) == Offer(4)
    assert drafts.offer(decoding([5] * 9), 4) == NOTHING
    long, short = decoding([5] * 6), decoding([5] * 7)
    items = [Scheduled(long, 3), Scheduled(short, 3)]
    assert [len(draft) for draft in drafts.propose(items)] == [2, 0]
    drafts.forget(long.id)
    drafts.forget("never seen")
    assert propose(drafts, short, 2)


def test_a_turn_is_timed_once_nobody_catches_up_with_a_prompt() -> None:
    ticks = count()
    drafts = DraftModel(another(), Sampler(frozenset()), 129, 4, clock=lambda: float(next(ticks)))
    sequence = decoding([5] * 20)
    propose(drafts, sequence, 1)
    assert drafts.turn_s == 0.0
    propose(drafts, sequence, 3)
    assert drafts.turn_s == pytest.approx(1.0)


def test_a_broken_row_of_the_draft_model_is_a_guess_like_any_other() -> None:
    drafts = DraftModel(another(), Sampler(frozenset()), 129, 4)
    drafts.decoder.logits = lambda hidden, token_ids=None: torch.full((len(hidden), 97), torch.nan)  # type: ignore[method-assign]
    sampling = SamplingParams(temperature=1.0, seed=1, max_tokens=50)
    sequence = decoding([5, 6, 7])
    sequence.request = replace(sequence.request, sampling=sampling)
    assert all(0 <= token < 97 for token in propose(drafts, sequence, 3))
