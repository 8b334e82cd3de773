"""Our decoder against transformers' Llama: the same logits, whole, in chunks, and token by token."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from core_engine.contracts import Pool
from core_engine.llm.decoder import Decoder
from core_engine.llm.engine import Engine
from tests.core_engine.llm.tiny import CONFIG, check, request, run_all, tiny_engine, tiny_weights

PROMPT = [11, 5, 93, 8, 40, 41, 42, 7, 7, 60, 3, 19, 25]


@pytest.fixture(scope="module")
def reference() -> LlamaForCausalLM:
    """transformers' model with the very same weights."""
    config = LlamaConfig(
        vocab_size=CONFIG.vocab_size,
        hidden_size=CONFIG.hidden_size,
        intermediate_size=CONFIG.intermediate_size,
        num_hidden_layers=CONFIG.num_layers,
        num_attention_heads=CONFIG.num_heads,
        num_key_value_heads=CONFIG.num_kv_heads,
        head_dim=CONFIG.head_dim,
        max_position_embeddings=CONFIG.max_positions,
        rope_theta=CONFIG.rope_theta,
        rms_norm_eps=CONFIG.rms_norm_eps,
        tie_word_embeddings=True,
    )
    model = LlamaForCausalLM(config).eval()
    weights = tiny_weights()
    state = {
        "model.embed_tokens.weight": weights["token_embd.weight"],
        "model.norm.weight": weights["output_norm.weight"],
    }
    names = {
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
    for layer in range(CONFIG.num_layers):
        for ours, theirs in names.items():
            state[f"model.layers.{layer}.{theirs}.weight"] = weights[f"blk.{layer}.{ours}.weight"]
    missing, unexpected = model.load_state_dict(state, strict=False)
    assert not unexpected
    assert missing == ["lm_head.weight"]  # tied
    return model


def logits_of(engine: Engine, prompt: list[int]) -> torch.Tensor:
    """Last-position logits after prefilling `prompt` in whatever chunks the engine's budget makes."""
    engine.add(request(prompt, max_tokens=1))
    last: list[torch.Tensor] = []
    logits = engine.runner.decoder.logits

    def noted(*args: Any) -> torch.Tensor:
        last.append(logits(*args))
        return last[-1]

    engine.runner.decoder.logits = noted  # type: ignore[method-assign, assignment]
    while engine.has_work:
        engine.step()
        check(engine)
    return last[-1][-1]


@pytest.mark.parametrize("chunk", range(1, 6))
def test_prefill_in_chunks_of_any_size_up_to_a_block_and_one_gives_transformers_logits(
    reference: LlamaForCausalLM, chunk: int
) -> None:
    ours = logits_of(tiny_engine(block_size=4, max_step_tokens=chunk), PROMPT)
    with torch.inference_mode():
        theirs = reference(torch.tensor([PROMPT])).logits[0, -1]
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-4)


def test_whole_prefill_gives_transformers_logits(reference: LlamaForCausalLM) -> None:
    ours = logits_of(tiny_engine(), PROMPT)
    with torch.inference_mode():
        theirs = reference(torch.tensor([PROMPT])).logits[0, -1]
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-4)


def test_greedy_decode_equals_transformers_alone_and_among_neighbours(reference: LlamaForCausalLM) -> None:
    prompts = [PROMPT[:n] for n in (1, 2, 5, 8, 13)]
    requests = [request(p, max_tokens=20, pool=pool) for p in prompts for pool in Pool]
    together = run_all(tiny_engine(max_step_tokens=16), requests)
    for each in requests:
        ids = torch.tensor([each.prompt_token_ids])
        with torch.inference_mode():
            theirs = reference.generate(ids, max_new_tokens=20, do_sample=False, eos_token_id=None, pad_token_id=0)
        expected = theirs[0, ids.shape[1] :].tolist()
        assert together[each.attempt_id] == expected
        assert run_all(tiny_engine(), [request(each.prompt_token_ids, max_tokens=20)]).popitem()[1] == expected


def test_a_wrong_rotation_would_be_seen(reference: LlamaForCausalLM) -> None:
    engine = tiny_engine()
    assert isinstance(engine.runner.decoder, Decoder)
    engine.runner.decoder.sin = -engine.runner.decoder.sin
    ours = logits_of(engine, PROMPT)
    with torch.inference_mode():
        theirs = reference(torch.tensor([PROMPT])).logits[0, -1]
    assert (ours - theirs).abs().max() > 1e-2
