"""Rotary frequencies of a model: plain, or stretched for contexts beyond the trained one.

Every kind is computed as transformers computes it (`modeling_rope_utils`), in float32, so that logits agree.

Dynamic NTK makes the frequencies depend on a length. Here a token's length is that of its prompt, or its own position
plus one if it lies beyond the prompt: what transformers gives for a whole prefill followed by decode steps. So it
does not depend on chunks, neighbours or a recompute. Within the trained context the length changes nothing.
"""

from __future__ import annotations

import math

import torch

from core_engine.llm.model_config import ModelConfig, RopeScaling
from kernels.rope import inverse_frequencies


def scaled_frequencies(config: ModelConfig) -> torch.Tensor:
    """Radians per position of each rotary pair, [head_dim / 2] float32; of dynamic NTK within the trained context."""
    plain = inverse_frequencies(config.head_dim, config.rope_theta)
    match config.rope.type:
        case "linear":
            return plain / config.rope.factor
        case "llama3":
            return _llama3(plain, config.rope)
        case "yarn":
            return _yarn(plain, config)
        case "default" | "dynamic":
            return plain


def dynamic_frequencies(config: ModelConfig, lengths: torch.Tensor) -> torch.Tensor:
    """Dynamic NTK: frequencies [num_tokens, head_dim / 2] of tokens whose lengths are `lengths` [num_tokens].

    Source: the NTK-aware rule of u/emozilla, 2023, as in transformers: base * (s L / L0 - (s - 1)) ** (d / (d - 2)).
    """
    rope, dim = config.rope, config.head_dim
    stretched = lengths.clamp(min=rope.original_positions)
    growth = (rope.factor * stretched / rope.original_positions) - (rope.factor - 1)
    base = config.rope_theta * growth ** (dim / (dim - 2))
    return 1.0 / base.unsqueeze(1) ** (torch.arange(0, dim, 2, dtype=torch.int64).float() / dim)


def _llama3(plain: torch.Tensor, rope: RopeScaling) -> torch.Tensor:
    """Long waves are divided by the factor, short ones kept, those between blended.

    Source: Llama 3.1's reference code, `apply_scaling`.
    """
    turns = rope.original_positions * plain / (2 * math.pi)  # of each pair in the trained context
    blend = (turns - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor)
    blend = blend.clamp(0, 1)
    return (1 - blend) * plain / rope.factor + blend * plain


def _yarn(plain: torch.Tensor, config: ModelConfig) -> torch.Tensor:
    """Source: Peng et al., "YaRN", 2023, section 3.2, with the ramp over dimensions of the authors' code."""
    rope, dim = config.rope, config.head_dim

    def dimension(num_turns: float) -> float:
        """The (fractional) pair that turns so many times in the trained context."""
        length = rope.original_positions / (num_turns * 2 * math.pi)
        return dim * math.log(length) / (2 * math.log(config.rope_theta))

    low, high = dimension(rope.beta_fast), dimension(rope.beta_slow)
    if rope.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    width = (high - low) or 0.001
    kept = 1 - ((torch.arange(dim // 2, dtype=torch.float32) - low) / width).clamp(0, 1)
    return plain / rope.factor * (1 - kept) + plain * kept
