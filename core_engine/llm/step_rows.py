"""What a step computes, in plain numbers: the rows, whose they are, where their KV lies. Each decoder makes of it what
its kernels take.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from core_engine.llm.step_plan import Scheduled


@dataclass(frozen=True, slots=True)
class Span:
    """Consecutive tokens of one sequence: one for decode, several for a prefill chunk or for verification.

    `position` is the first one's; `block_table` holds every block up to the last one's.
    """

    position: int
    num_rows: int
    block_table: list[int]
    num_prompt_tokens: int  # dynamic RoPE turns all of a prompt by its whole length

    @property
    def end(self) -> int:
        """The position after the last row's."""
        return self.position + self.num_rows


@dataclass(frozen=True, slots=True)
class StepRows:
    """Spans in the order of their rows, decode rows first; `output_rows` are those whose hidden state is wanted."""

    token_ids: list[int]
    spans: list[Span]
    output_rows: list[int]

    @property
    def positions(self) -> list[int]:
        return [position for span in self.spans for position in range(span.position, span.end)]


def step_rows(scheduled: Iterable[Scheduled]) -> StepRows:
    """Decode rows must come first in `scheduled`."""
    rows = StepRows([], [], [])
    for item in scheduled:
        sequence, start = item.sequence, item.sequence.num_computed_tokens
        end, row = start + item.num_tokens, len(rows.token_ids)
        rows.spans.append(Span(start, item.num_tokens, sequence.block_table, sequence.num_prompt_tokens))
        rows.token_ids.extend(sequence.token_ids[start:end])
        rows.token_ids.extend(item.draft)
        rows.output_rows.extend(range(row + item.num_tokens - item.num_outputs, row + item.num_tokens))
    return rows
