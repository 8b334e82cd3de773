"""Reads how a Hugging Face configuration scales its rotary frequencies: `rope_parameters`, or the older `rope_scaling`.

Source: transformers, `modeling_rope_utils`, which keys each kind has and what they default to.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from core_engine.errors import ModelFileError
from core_engine.llm.model_config import ROPE_TYPES, RopeScaling, yarn_attention_factor

DEFAULT_THETA = 10_000.0
EVERY_TYPE = {"rope_type", "type", "rope_theta", "partial_rotary_factor"}
REQUIRED: dict[str, set[str]] = {
    "default": set(),
    "linear": {"factor"},
    "dynamic": {"factor"},
    "llama3": {"factor", "low_freq_factor", "high_freq_factor"},
    "yarn": set(),
}
OPTIONAL: dict[str, set[str]] = {
    "dynamic": {"original_max_position_embeddings"},
    "llama3": {"original_max_position_embeddings"},
    "yarn": {
        "factor",
        "original_max_position_embeddings",
        "attention_factor",
        "beta_fast",
        "beta_slow",
        "mscale",
        "mscale_all_dim",
        "truncate",
    },
}


def read_rope(config: dict[str, Any], max_positions: int, path: Path) -> tuple[float, RopeScaling]:
    """The base of the frequencies, and their scaling.

    Raises:
        ModelFileError: for a kind or a key that is not known, a missing key, or a value that is no number.
    """
    given: dict[str, Any] = config.get("rope_parameters") or config.get("rope_scaling") or {}
    kind = given.get("rope_type", given.get("type", "default"))
    if kind not in ROPE_TYPES:
        raise ModelFileError(f"model file {path}: rope_type {kind!r} is unknown; known are {', '.join(ROPE_TYPES)}")
    beside = {key: config[key] for key in ("rope_theta", "partial_rotary_factor") if key in config}
    rope: dict[str, Any] = {key: value for key, value in (beside | given).items() if value is not None}
    _check_keys(rope, kind, path)
    if rope.get("partial_rotary_factor", 1.0) != 1.0:
        raise ModelFileError(
            f"model file {path}: partial_rotary_factor = {rope['partial_rotary_factor']} not supported"
        )
    return float(rope.get("rope_theta", DEFAULT_THETA)), _scaling(rope, kind, config, max_positions)


def _scaling(rope: dict[str, Any], kind: Any, config: dict[str, Any], max_positions: int) -> RopeScaling:
    if kind == "default":
        return RopeScaling()
    # a key beside the dictionary wins, as in transformers; dynamic scales from what the configuration allows
    trained = rope.get("original_max_position_embeddings", max_positions)
    original = max_positions if kind == "dynamic" else config.get("original_max_position_embeddings") or trained
    factor = float(rope.get("factor", max_positions / original))
    attention = yarn_attention_factor(factor, rope.get("mscale"), rope.get("mscale_all_dim"))
    return RopeScaling(
        type=kind,
        factor=factor,
        original_positions=int(original),
        low_freq_factor=float(rope.get("low_freq_factor", 1.0)),
        high_freq_factor=float(rope.get("high_freq_factor", 4.0)),
        beta_fast=float(rope.get("beta_fast") or 32.0),
        beta_slow=float(rope.get("beta_slow") or 1.0),
        truncate=bool(rope.get("truncate", True)),
        attention_factor=float(rope.get("attention_factor", attention)) if kind == "yarn" else 1.0,
    )


def _check_keys(rope: dict[str, Any], kind: str, path: Path) -> None:
    known = EVERY_TYPE | REQUIRED[kind] | OPTIONAL.get(kind, set())
    if unknown := sorted(rope.keys() - known):
        raise ModelFileError(f"model file {path}: rope_parameters key {unknown[0]!r} is unknown for rope_type {kind!r}")
    if missing := sorted(REQUIRED[kind] - rope.keys()):
        raise ModelFileError(f"model file {path}: rope_parameters key {missing[0]!r} is missing for rope_type {kind!r}")
    for key, value in rope.items():
        if key not in ("rope_type", "type", "truncate") and not (isinstance(value, int | float) and value > 0):
            raise ModelFileError(f"model file {path}: rope_parameters {key} = {value!r}, expected a positive number")
