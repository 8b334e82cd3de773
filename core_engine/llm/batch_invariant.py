"""Determinism mode: a sequence's logits, bit for bit, whatever the batch, the chunks, the cache and the past.

A floating-point sum depends on its order, and libraries choose the order by the shape of a call. So here no call has a
shape that a neighbour or a chunk could change:

- Matrix products, norms and residuals take `TILE_ROWS` rows at a time, the last tile padded with zeros. That a row's
  result does not depend on its place in the tile is looked at once, when the model is loaded.
- The activation takes one row at a time: vectorised code treats the end of a range in another way than its middle.
- Attention takes the `QUERY_TILE` queries at positions [t * QUERY_TILE, (t + 1) * QUERY_TILE) of one sequence, over the
  keys before the tile's end. A query's place in its tile and the length of its context follow from its position alone;
  rows that are not there are zero, keys that are not there are masked and add exactly nothing.

Source: He et al., "Defeating Nondeterminism in LLM Inference", Thinking Machines Lab, 2025 (batch invariance).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields

import torch
from torch.nn import functional as F

from core_engine.errors import ConfigurationError
from core_engine.llm.decoder import Decoder, KvPrecision, Layer, Projected
from core_engine.llm.model_config import ModelConfig
from core_engine.llm.rope_scaling import dynamic_frequencies
from core_engine.llm.step_input import StepInput
from core_engine.llm.step_rows import StepRows
from kernels.linear import Weight
from kernels.paged_attention import causal_bias, prefill_attention
from kernels.rope import rotations
from kernels.silu_mul import silu_mul

TILE_ROWS = 16  # one row costs as much as 16 in bfloat16 on two Zen 4 cores; 64 would cost twice as much
QUERY_TILE = 8


@dataclass(frozen=True, slots=True)
class QueryTile:
    """The queries of one sequence in one tile of positions: rows [start, end) of the step, `offset` into the tile."""

    start: int
    end: int
    offset: int
    slots: torch.Tensor  # [context], to the end of the tile; slot 0 for what is not there
    bias: torch.Tensor  # [QUERY_TILE, context]


@dataclass(frozen=True, slots=True)
class TiledStep(StepInput):
    tiles: tuple[QueryTile, ...] = ()


class BatchInvariantDecoder(Decoder):
    """A `Decoder` whose results for a row depend on its sequence alone.

    Raises:
        ConfigurationError: if this machine's matrix products depend on a row's place in the tile.
    """

    def __init__(self, config: ModelConfig, weights: Mapping[str, Weight], kv: KvPrecision | None = None) -> None:
        super().__init__(config, weights, kv)
        self._check_rows()

    def step_input(self, rows: StepRows, block_size: int) -> TiledStep:
        step = super().step_input(rows, block_size)
        same = {field.name: getattr(step, field.name) for field in fields(StepInput)}
        return TiledStep(**same, tiles=tuple(_query_tiles(step, self.config.sliding_window)))

    def logits(self, hidden: torch.Tensor, token_ids: torch.Tensor | None = None) -> torch.Tensor:
        """As `Decoder.logits`; always over the whole vocabulary, so that a choice of columns changes no shape."""
        (logits,) = _by_tiles(lambda rows: (super(BatchInvariantDecoder, self).logits(rows),), hidden)
        return logits if token_ids is None else logits[:, token_ids]

    def rotations(self, step: StepInput) -> tuple[torch.Tensor, torch.Tensor]:
        cos, sin = self.cos[step.positions], self.sin[step.positions]
        lengths = step.rope_lengths
        if lengths is not None:
            for row in (lengths > self.config.rope.original_positions).nonzero().flatten().tolist():
                inverse = dynamic_frequencies(self.config, lengths[row : row + 1])
                cos[row : row + 1], sin[row : row + 1] = rotations(step.positions[row : row + 1], inverse)
        return cos.to(self.dtype), sin.to(self.dtype)

    def project(self, layer: Layer, hidden: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> Projected:
        project = super().project
        return Projected(*_by_tiles(lambda *rows: project(layer, *rows), hidden, cos, sin))

    def attend(self, query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, step: StepInput) -> torch.Tensor:
        assert isinstance(step, TiledStep)  # `step_input` made it
        out = torch.empty_like(query, memory_format=torch.contiguous_format)
        for tile in step.tiles:
            own = slice(tile.offset, tile.offset + tile.end - tile.start)
            rows = query.new_zeros(QUERY_TILE, *query.shape[1:])
            rows[own] = query[tile.start : tile.end]
            out[tile.start : tile.end] = prefill_attention(rows, keys, values, tile.slots, tile.bias)[own]
        return out

    def finish(self, layer: Layer, hidden: torch.Tensor, attended: torch.Tensor) -> torch.Tensor:
        finish = super().finish
        (out,) = _by_tiles(lambda *rows: (finish(layer, *rows),), hidden, attended)
        return out

    def activate(self, gate_up: torch.Tensor) -> torch.Tensor:
        return torch.cat([silu_mul(row) for row in gate_up.unsqueeze(1)])

    def normed(self, hidden: torch.Tensor) -> torch.Tensor:
        normed = super().normed
        (out,) = _by_tiles(lambda rows: (normed(rows),), hidden)
        return out

    @torch.inference_mode()
    def _check_rows(self) -> None:
        """Run a tile of equal rows through every kind of call: they must come out equal."""
        config, draws = self.config, torch.Generator().manual_seed(0)

        def equal_rows(*shape: int) -> torch.Tensor:
            return torch.randn(1, *shape, generator=draws).to(self.dtype).repeat(TILE_ROWS, *(1 for _ in shape))

        hidden, cos, sin = equal_rows(config.hidden_size), self.cos[1].to(self.dtype), self.sin[1].to(self.dtype)
        layer = self.layers[0]
        projected = self.project(layer, hidden, cos.repeat(TILE_ROWS, 1), sin.repeat(TILE_ROWS, 1))
        out = self.finish(layer, hidden, equal_rows(config.num_heads, config.head_dim))
        for rows in (*projected, out, self.logits(self.normed(out))):
            if not torch.equal(rows, rows[:1].expand_as(rows)):
                raise ConfigurationError(
                    "HEADRACE_ENGINE__DETERMINISTIC: on this machine a matrix product of "
                    f"{TILE_ROWS} rows in {self.dtype} depends on the row's place; unset it"
                )


def _by_tiles(call: Callable[..., tuple[torch.Tensor, ...]], *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """`call` on `TILE_ROWS` rows of all `inputs` at a time; its outputs, as many rows as came in."""
    num_rows = len(inputs[0])
    padding = -num_rows % TILE_ROWS if num_rows else TILE_ROWS
    padded = [F.pad(x, (0, 0) * (x.dim() - 1) + (0, padding)) for x in inputs]
    outputs = [call(*(x[i : i + TILE_ROWS] for x in padded)) for i in range(0, len(padded[0]), TILE_ROWS)]
    return tuple(torch.cat(parts)[:num_rows] for parts in zip(*outputs, strict=True))


def _query_tiles(step: StepInput, window: int | None) -> Iterator[QueryTile]:
    """The step's queries by sequence and tile of positions."""
    positions = step.positions.tolist()
    for row in range(step.num_decode):
        seen = positions[row] + 1 if window is None else min(window, positions[row] + 1)
        yield from _tiles_of(
            row, row + 1, positions[row], step.decode_slots[row, :seen], window, step.decode_bias.dtype
        )
    for chunk in step.chunks:
        yield from _tiles_of(chunk.start, chunk.end, positions[chunk.start], chunk.slots, window, chunk.bias.dtype)


def _tiles_of(
    start: int, end: int, position: int, slots: torch.Tensor, window: int | None, dtype: torch.dtype
) -> Iterator[QueryTile]:
    """Rows [start, end) of one sequence from `position` on; `slots` [context] end with the last row's."""
    after = position + end - start
    first = after - len(slots)  # the position of the first slot
    while position < after:
        tile_start = position - position % QUERY_TILE
        tile_end = tile_start + QUERY_TILE
        context_start = 0 if window is None else max(0, tile_start + 1 - window)
        context = slots.new_zeros(tile_end - context_start)
        known_start, known_end = max(first, context_start), min(after, tile_end)
        context[known_start - context_start : known_end - context_start] = slots[
            known_start - first : known_end - first
        ]
        row = start + known_end - position
        bias = causal_bias(QUERY_TILE, len(context), dtype, window)
        yield QueryTile(start, row, position - tile_start, context, bias)
        start, position = row, known_end
