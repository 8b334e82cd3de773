"""Log-probabilities of completions and prompts against transformers, however the prompt is cut and who runs beside."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import LlamaConfig, LlamaForCausalLM

from core_engine.contracts import GenerateRequest, SamplingParams, TokenLogprob
from core_engine.llm.engine import Engine
from core_engine.llm.logprobs import PromptLogprobs, token_logprobs
from core_engine.llm.scheduler import Scheduled, StepPlan
from core_engine.llm.sequence import Sequence
from core_engine.llm.step_result import StepResult
from tests.core_engine.llm.tiny import CONFIG, request, tiny_engine, tiny_weights

PROMPT = [5, 17, 33, 2, 90, 41, 41, 8, 77, 3, 60, 12, 29]


@pytest.fixture(scope="module")
def reference() -> LlamaForCausalLM:
    """transformers' Llama with the tiny engine's weights."""
    config = LlamaConfig(
        num_hidden_layers=CONFIG.num_layers,
        hidden_size=CONFIG.hidden_size,
        intermediate_size=CONFIG.intermediate_size,
        num_attention_heads=CONFIG.num_heads,
        num_key_value_heads=CONFIG.num_kv_heads,
        head_dim=CONFIG.head_dim,
        vocab_size=CONFIG.vocab_size,
        rope_theta=CONFIG.rope_theta,
        rms_norm_eps=CONFIG.rms_norm_eps,
        tie_word_embeddings=True,
    )
    names = {
        "token_embd": "model.embed_tokens",
        "output_norm": "model.norm",
        "attn_norm": "input_layernorm",
        "attn_q": "self_attn.q_proj",
        "attn_k": "self_attn.k_proj",
        "attn_v": "self_attn.v_proj",
        "attn_output": "self_attn.o_proj",
        "ffn_norm": "post_attention_layernorm",
        "ffn_gate": "mlp.gate_proj",
        "ffn_up": "mlp.up_proj",
        "ffn_down": "mlp.down_proj",
    }

    def theirs(name: str) -> str:
        *block, own, _ = name.split(".")
        return ".".join([f"model.layers.{block[1]}", names[own], "weight"] if block else [names[own], "weight"])

    model = LlamaForCausalLM(config).eval()
    missing = model.load_state_dict({theirs(name): w for name, w in tiny_weights().items()}, strict=False)
    assert missing.unexpected_keys == []
    assert set(missing.missing_keys) <= {"lm_head.weight"}
    return model


def expected(reference: LlamaForCausalLM, token_ids: list[int]) -> torch.Tensor:
    """Log-probabilities [num_tokens, vocab] of transformers, row i for the token at i + 1."""
    with torch.inference_mode():
        return torch.log_softmax(reference(torch.tensor([token_ids])).logits[0].double(), dim=-1)


def check_entry(entry: TokenLogprob, row: torch.Tensor, token: int, num_top: int) -> None:
    assert entry.token_id == token
    assert entry.logprob == pytest.approx(float(row[token]), abs=1e-4)
    assert entry.rank == 1 + int((row > row[token] + 1e-4).sum())
    best = row.topk(num_top)
    assert [i for i, _ in entry.top] == best.indices.tolist()
    assert [value for _, value in entry.top] == pytest.approx(best.values.tolist(), abs=1e-4)


class Recording:
    """Runs an engine's steps and keeps what its runner gave for each sequence."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.results: list[StepResult] = []
        run = engine.runner.run

        def recorded(plan: StepPlan, between: object) -> StepResult:
            self.results.append(run(plan, between))  # type: ignore[arg-type]
            return self.results[-1]

        engine.runner.run = recorded  # type: ignore[method-assign]

    def drain(self, requests: list[GenerateRequest]) -> None:
        for each in requests:
            self.engine.add(each)
        while self.engine.has_work:
            self.engine.step()

    def prompt_logprobs(self, attempt_id: str) -> list[tuple[TokenLogprob | None, ...]]:
        return [r.prompt_logprobs[attempt_id] for r in self.results if attempt_id in r.prompt_logprobs]

    def logprobs(self, attempt_id: str) -> list[TokenLogprob]:
        return [each for r in self.results for each in r.logprobs.get(attempt_id, ())]

    def tokens(self, attempt_id: str) -> list[int]:
        return [r.tokens[attempt_id] for r in self.results if attempt_id in r.tokens]


def ask(prompt: list[int], **dials: object) -> GenerateRequest:
    sampling = SamplingParams(max_tokens=6, ignore_eos=True)
    return request(prompt, sampling=replace(sampling, **dials))  # type: ignore[arg-type]


@pytest.mark.parametrize("max_step_tokens", [64, 1, 3, 4, 5])  # whole, tokens, less and more than a block, a block
@pytest.mark.parametrize("num_neighbours", [0, 2])
def test_prompt_and_completion_are_those_of_transformers_for_every_chunking(
    reference: LlamaForCausalLM, max_step_tokens: int, num_neighbours: int
) -> None:
    mine = ask(PROMPT, logprobs=3, prompt_logprobs=2)
    neighbours = [ask([9, i, 4], prompt_logprobs=i * 3, logprobs=None) for i in range(num_neighbours)]
    recording = Recording(tiny_engine(max_step_tokens=max_step_tokens))
    recording.drain([*neighbours, mine])
    tokens = recording.tokens(mine.attempt_id)
    rows = expected(reference, PROMPT + tokens)
    (entries,) = recording.prompt_logprobs(mine.attempt_id)  # once
    assert entries[0] is None
    assert len(entries) == len(PROMPT)
    for position, entry in enumerate(entries[1:], start=1):
        assert entry is not None
        check_entry(entry, rows[position - 1], PROMPT[position], 2)
    found = recording.logprobs(mine.attempt_id)
    assert len(found) == len(tokens)
    for index, entry in enumerate(found):
        check_entry(entry, rows[len(PROMPT) - 1 + index], tokens[index], 3)
    for each in neighbours:
        assert len(recording.prompt_logprobs(each.attempt_id)) == 1
        assert not recording.logprobs(each.attempt_id)


def test_they_come_with_the_first_token_and_are_forgotten_then() -> None:
    mine = ask(PROMPT, prompt_logprobs=0)
    recording = Recording(tiny_engine(max_step_tokens=5))
    recording.drain([mine])
    with_prompt = [r for r in recording.results if mine.attempt_id in r.prompt_logprobs]
    with_tokens = [r for r in recording.results if mine.attempt_id in r.tokens]
    assert with_prompt == with_tokens[:1]
    assert recording.engine.runner.prompt_logprobs.num_sequences == 0


def test_dials_do_not_change_what_the_model_thought(reference: LlamaForCausalLM) -> None:
    turned = {"temperature": 1.4, "top_k": 5, "seed": 2, "repetition_penalty": 1.5, "logit_bias": ((11, 3.0),)}
    mine = ask(PROMPT, logprobs=4, **turned)
    recording = Recording(tiny_engine())
    recording.drain([mine])
    tokens = recording.tokens(mine.attempt_id)
    rows = expected(reference, PROMPT + tokens)
    assert any(entry.rank > 1 for entry in recording.logprobs(mine.attempt_id))
    for index, entry in enumerate(recording.logprobs(mine.attempt_id)):
        check_entry(entry, rows[len(PROMPT) - 1 + index], tokens[index], 4)


def test_a_prompt_of_one_token_has_one_entry_that_is_none() -> None:
    mine = ask([4], prompt_logprobs=5)
    recording = Recording(tiny_engine())
    recording.drain([mine])
    assert recording.prompt_logprobs(mine.attempt_id) == [(None,)]


@given(cuts=st.sets(st.integers(1, len(PROMPT) - 1)), lost_after=st.integers(0, len(PROMPT)))
def test_a_sequence_that_begins_again_collects_anew(cuts: set[int], lost_after: int) -> None:
    weights = torch.randn(CONFIG.vocab_size, 8, generator=torch.Generator().manual_seed(1))
    hidden = torch.randn(len(PROMPT), 8, generator=torch.Generator().manual_seed(2))
    collector, sequence = PromptLogprobs(), Sequence(ask(PROMPT, prompt_logprobs=1), 0.0)

    def run(ends: list[int]) -> list[tuple[TokenLogprob | None, ...] | None]:
        found = []
        for end in ends:
            item = Scheduled(sequence, end - sequence.num_computed_tokens, None)  # type: ignore[arg-type]
            rows = hidden[sequence.num_computed_tokens : end]
            assert item.num_outputs == len(rows)
            found.append(collector.add(sequence, rows, lambda some: some @ weights.T))
            sequence.num_computed_tokens = end
        return found

    run([end for end in sorted(cuts) if end <= lost_after and end < len(PROMPT)])
    collector.forget(sequence.id)
    sequence.num_computed_tokens = 0
    *before, last = run([*sorted(cuts), len(PROMPT)])
    assert before == [None] * len(cuts)
    log_probs = torch.log_softmax(hidden @ weights.T, dim=-1)
    whole = token_logprobs(log_probs[:-1], PROMPT[1:], [1] * (len(PROMPT) - 1))
    assert last is not None
    for entry, other in zip(last[1:], whole, strict=True):
        assert entry is not None
        assert (entry.token_id, entry.rank) == (other.token_id, other.rank)
        assert entry.logprob == pytest.approx(other.logprob, abs=1e-5)


@given(seed=st.integers(0, 100), tops=st.lists(st.integers(0, 20), min_size=1, max_size=5))
def test_each_row_gets_as_many_of_the_most_likely_as_it_asked_for(seed: int, tops: list[int]) -> None:
    logits = torch.randn(len(tops), 30, generator=torch.Generator().manual_seed(seed))
    log_probs = torch.log_softmax(logits, dim=-1)
    tokens = [seed % 30] * len(tops)
    for row, entry in enumerate(token_logprobs(log_probs, tokens, tops)):
        check_entry(entry, log_probs[row].double(), tokens[row], tops[row])
        assert len(entry.top) == tops[row]


def test_a_vocabulary_smaller_than_twenty_gives_all_that_there_are() -> None:
    (entry,) = token_logprobs(torch.log_softmax(torch.arange(5.0), -1).unsqueeze(0), [0], [20])
    assert [token for token, _ in entry.top] == [4, 3, 2, 1, 0]
    assert entry.rank == 5
