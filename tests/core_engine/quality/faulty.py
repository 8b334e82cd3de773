"""The real model in int8 with int8 KV, and with one small fault in it."""

from __future__ import annotations

from dataclasses import replace

import torch

from core_engine.llm.cpu_decoder import CpuDecoder
from core_engine.llm.gguf_reader import default_model_path
from core_engine.llm.kv_cache import KvCache
from core_engine.llm.model_decoder import AnyDecoder, Dials, make_decoder
from core_engine.llm.model_files import LoadedModel, load_quantised_model
from core_engine.llm.quantised_weights import Scheme
from core_engine.llm.step_rows import StepRows
from core_engine.llm.weights_cache import default_cache_folder
from kernels.cpu.step import TILE
from kernels.quantise import GroupQuantised

DIALS = Dials("int8", "int8")


def int8_model() -> LoadedModel:
    return load_quantised_model(default_model_path(), Scheme(8), default_cache_folder())


def decoder(model: LoadedModel, **changed: GroupQuantised) -> AnyDecoder:
    """With weights `changed`, by their names with a double underscore for each dot."""
    named = {name.replace("__", "."): weight for name, weight in changed.items()}
    return make_decoder(model.config, {**model.weights, **model.linears, **named}, DIALS)


def bad_scale(model: LoadedModel, layer: int, row: int, group: int, factor: float) -> AnyDecoder:
    """One scale of a down projection, of 64 weights among 106 million, is wrong by `factor`."""
    name = f"blk.{layer}.ffn_down.weight"
    scales = model.linears[name].scales.clone()
    scales[row, group] *= factor
    return decoder(model, **{name.replace(".", "__"): replace(model.linears[name], scales=scales)})


def zeroed_channel(model: LoadedModel, layer: int, channel: int) -> AnyDecoder:
    """One input of a down projection reaches nobody."""
    name = f"blk.{layer}.ffn_down.weight"
    codes = model.linears[name].codes.clone()
    codes[:, channel] = 0
    return decoder(model, **{name.replace(".", "__"): replace(model.linears[name], codes=codes)})


class ShiftedKeyScales:
    """Later steps read each key of one layer with the scale of the token before it. One sequence at a time."""

    def __init__(self, model: LoadedModel, layer: int) -> None:
        found = decoder(model)
        assert isinstance(found, CpuDecoder), "this fault is put into the kernel's own cache"
        self._decoder, self._layer, self._config = found, layer, model.config
        self._last = torch.empty(0)  # of the newest token, its true scales [1, num_kv_heads]

    def new_cache(self, num_blocks: int, block_size: int) -> KvCache:
        assert block_size == TILE
        return self._decoder.new_cache(num_blocks, block_size)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return self._decoder.logits(hidden)

    def forward(self, rows: StepRows, cache: KvCache) -> torch.Tensor:
        hidden = self._decoder.forward(rows, cache)
        (span,) = rows.spans
        positions = torch.arange(span.position, span.end)
        slots = torch.tensor(span.block_table)[positions // TILE], positions % TILE
        scales = self._key_scales(cache)
        written = scales[slots]  # [num_rows, num_kv_heads]
        before = written[:1] if span.position == 0 else self._last
        scales[slots] = torch.cat((before, written[:-1]))
        self._last = written[-1:]
        return hidden

    def _key_scales(self, cache: KvCache) -> torch.Tensor:
        """A view of the layer's, [num_blocks, TILE, num_kv_heads]; kernels/cpu/src/kv.h has the layout."""
        codes_bytes = TILE * self._config.head_dim
        sides = cache.tensor[self._layer].view(cache.num_blocks, self._config.num_kv_heads, 2, -1)
        return sides[:, :, 0, codes_bytes:].view(torch.float32).transpose(1, 2)
