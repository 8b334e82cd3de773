"""Log-probabilities of tokens under the model's own distribution, before any dial: of the sampled and of the prompt's.

A prompt's are collected over its chunks by position. A sequence that is pre-empted begins again.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Items

import torch

from core_engine.contracts import TokenLogprob
from core_engine.llm.sequence import Sequence
from core_engine.llm.validation import MAX_TOP

MAX_ROWS = 128  # prompt rows whose logits are held at once: 25 MB of float32 at 49,152 tokens


def token_logprobs(log_probs: torch.Tensor, tokens: Items[int], num_top: Items[int]) -> list[TokenLogprob]:
    """One entry per row of `log_probs` [num_rows, vocab]: of `tokens`, with the `num_top` most likely ones there."""
    own = log_probs.gather(-1, torch.tensor(tokens).unsqueeze(-1))
    ranks = (log_probs > own).sum(-1) + 1
    # always as many, then cut: what one row gets does not depend on what another asks for
    values, ids = log_probs.topk(min(MAX_TOP, log_probs.shape[-1])) if any(num_top) else (own, own)
    rows = zip(tokens, own[:, 0].tolist(), ranks.tolist(), ids.tolist(), values.tolist(), num_top, strict=True)
    return [
        TokenLogprob(token, logprob, rank, tuple(zip(top_ids[:num], top[:num], strict=True)))
        for token, logprob, rank, top_ids, top, num in rows
    ]


class PromptLogprobs:
    """Collects prompt log-probabilities of sequences that asked for them and have no completion token yet."""

    def __init__(self) -> None:
        self._found: dict[str, list[TokenLogprob | None]] = {}

    @property
    def num_sequences(self) -> int:
        return len(self._found)

    def add(
        self, sequence: Sequence, hidden: torch.Tensor, logits_of: Callable[[torch.Tensor], torch.Tensor]
    ) -> tuple[TokenLogprob | None, ...] | None:
        """Take the final hidden states [num_rows, hidden] of the sequence's next rows; all entries once complete.

        The row at one position speaks of the token at the next. Entry 0 is None: nothing precedes it.
        """
        num_top, start = sequence.request.sampling.prompt_logprobs, sequence.num_computed_tokens
        assert num_top is not None, f"{sequence.id} asked for no prompt log-probabilities"
        if start == 0:
            self._found[sequence.id] = [None]
        found = self._found[sequence.id]
        assert len(found) == start + 1, f"{sequence.id}: rows from {start} on follow {len(found)} entries"
        targets = sequence.token_ids[start + 1 : min(start + 1 + len(hidden), sequence.num_prompt_tokens)]
        for at in range(0, len(targets), MAX_ROWS):
            some = targets[at : at + MAX_ROWS]
            log_probs = torch.log_softmax(logits_of(hidden[at : at + len(some)]), dim=-1)
            found += token_logprobs(log_probs, some, [num_top] * len(some))
        if start + len(hidden) < sequence.num_prompt_tokens:  # the row of the last token brings the first one, too
            return None
        return tuple(self._found.pop(sequence.id))

    def forget(self, sequence_id: str) -> None:
        self._found.pop(sequence_id, None)


def wants_prompt_logprobs(sequence: Sequence) -> bool:
    """Whether its rows are still to be collected: not once it has a token, with which they went out."""
    return sequence.request.sampling.prompt_logprobs is not None and not sequence.num_completion_tokens
