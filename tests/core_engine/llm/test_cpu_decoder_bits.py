"""The C++ step against itself: a sequence has the same bits alone, in a crowd, in chunks, in pieces, by any threads."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from core_engine.llm import cpu_decoder as module
from core_engine.llm.decoder import KvPrecision
from kernels.cpu.compiler import find_compiler
from tests.core_engine.llm.crowd import alone, crowd, script
from tests.core_engine.llm.families import LONG
from tests.core_engine.llm.precisions import BLOCK, SHAPES, one_span, ours, shape
from tests.core_engine.llm.stepping import Stepper

pytestmark = pytest.mark.skipif(find_compiler() is None, reason="no C++ compiler")

EXACT: list[tuple[str, str, KvPrecision]] = [
    ("smollm", "int8", "int8"),
    ("smollm", "int4", "bfloat16"),
    ("window", "bfloat16", "bfloat16"),
    ("dynamic", "int4 symmetric by 32", "int8"),
    ("eight heads", "float32", "bfloat16"),
]


class Exact:
    """A model's own steppers by their number of threads, and what it says of three scripts when each is alone."""

    def __init__(self, name: str, precision: str, kv: KvPrecision) -> None:
        config = SHAPES[name]
        self.steppers = {threads: ours(config, precision, kv, num_threads=threads) for threads in (1, 2, 3)}
        self.scripts = [script(70, 9, seed=5), script(33, 12, seed=6), script(16, 20, seed=7)]
        self.alone = [alone(self.steppers[1], told) for told in self.scripts]


@pytest.fixture(scope="module", params=EXACT, ids="-".join)
def exact(request: pytest.FixtureRequest) -> Exact:
    return Exact(*request.param)


@given(num_threads=st.integers(1, 3), seed=st.integers(0, 10_000))
def test_a_sequence_has_the_bits_that_it_has_alone_whatever_runs_beside_it(
    exact: Exact, num_threads: int, seed: int
) -> None:
    steps = Stepper(exact.steppers[num_threads].decoder, num_blocks=600, block_size=BLOCK)
    for rows, expected in zip(crowd(steps, exact.scripts, seed), exact.alone, strict=True):
        assert torch.equal(rows, expected)


@given(num_threads=st.integers(1, 3), chunk=st.integers(1, 80))
def test_chunks_of_any_size_have_the_same_bits(exact: Exact, num_threads: int, chunk: int) -> None:
    steps = Stepper(exact.steppers[num_threads].decoder, num_blocks=30, block_size=BLOCK)
    prompt = exact.scripts[0].prompt
    assert torch.equal(steps.prefill(prompt, chunk), exact.alone[0][: len(prompt)])


@pytest.mark.parametrize("num_threads", [1, 2, 3])
def test_a_large_batch_with_a_long_chunk_has_the_same_bits(exact: Exact, num_threads: int) -> None:
    steps = Stepper(exact.steppers[num_threads].decoder, num_blocks=600, block_size=BLOCK)
    decoding = [steps.sequence([7, 8, index]) for index in range(50)]
    steps.step(*((each, 2) for each in decoding))
    own, long = steps.sequence(exact.scripts[0].prompt), steps.sequence(script(180, 0).prompt)
    logits = steps.step(*((each, 1) for each in decoding), (long, 180), (own, 70))
    assert torch.equal(logits[-1], exact.alone[0][:70])
    assert torch.equal(logits[17][0], steps.prefill([7, 8, 17])[-1])


def test_other_numbers_of_layers_in_one_call_have_the_same_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    steps = ours(shape(num_layers=5), "int8", "int8")
    decoder, rows = steps.decoder, one_span(steps.sequence(LONG), 20)
    expected = decoder.forward(rows, steps.cache)
    other = torch.randn(3, 48)
    logits, seen = decoder.logits(other), list[torch.Tensor]()
    for layers, num_calls in ((1, 5), (2, 3), (5, 1), (9, 1)):
        monkeypatch.setattr(module, "ROWS_BETWEEN", 20 * layers)
        seen.clear()
        assert torch.equal(decoder.forward(rows, steps.cache, lambda: seen.append(decoder.logits(other))), expected)
        assert len(seen) == num_calls
        assert all(torch.equal(each, logits) for each in seen)


def test_what_is_done_between_layers_may_end_the_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ROWS_BETWEEN", 1)
    steps = ours(shape(), "int8", "bfloat16")
    rows = one_span(steps.sequence(LONG), 20)

    def stop() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        steps.decoder.forward(rows, steps.cache, stop)
    assert steps.decoder.forward(rows, steps.cache).isfinite().all()


def test_decoders_that_run_at_once_do_not_disturb_one_another() -> None:
    told = script(60, 10)
    steppers = [ours(SHAPES["smollm"], precision, "int8") for precision in ("int8", "int4", "bfloat16")]
    expected = [alone(steps, told) for steps in steppers]
    with ThreadPoolExecutor(3) as pool:
        for rows, each in zip(pool.map(lambda steps: alone(steps, told), steppers), expected, strict=True):
            assert torch.equal(rows, each)
