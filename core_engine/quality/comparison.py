"""Two models over the same sequences, chunk by chunk: at no time are the logits of more than a chunk in memory.

Whoever wants to compare something else than our own decoders, such as a peer's scheme, gives a `Model` of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import torch

from core_engine.quality.model import Model
from core_engine.quality.report import Report, TokenPlaces, report
from core_engine.quality.scores import ReferenceRows, Scores


def compare(reference: Model, candidate: Model, sequences: Sequence[Sequence[int]]) -> Report:
    """What `candidate` changes on `sequences` of token ids, each of two tokens at least."""
    return compare_all(reference, {"candidate": candidate}, sequences)["candidate"]


def compare_all(
    reference: Model, candidates: Mapping[str, Model], sequences: Sequence[Sequence[int]]
) -> dict[str, Report]:
    """As `compare`, of several candidates with one pass of the reference."""
    places = TokenPlaces.of(sequences)
    # room for all at once: small tensors kept between large ones let the heap grow to 7 GB over 20,480 tokens
    found = {name: Scores.blank(len(places.position)) for name in candidates}
    row = 0
    for token_ids in sequences:
        for rows, following, pieces in _side_by_side(reference, candidates, token_ids):
            for name, logits in pieces.items():
                found[name].put(row, Scores.of(rows, logits, following))
            row += len(following)
    return {name: report(scores, places) for name, scores in found.items()}


def _side_by_side(
    reference: Model, candidates: Mapping[str, Model], token_ids: Sequence[int]
) -> Iterator[tuple[ReferenceRows, torch.Tensor, dict[str, torch.Tensor]]]:
    """Of one sequence, piece by piece: the reference's rows, the tokens that follow them, and each candidate's logits.

    All tokens follow something but the first.
    """
    context, targets = token_ids[:-1], torch.tensor(token_ids[1:])
    given = {name: Pieces(model.logits(context)) for name, model in candidates.items()}
    start = 0
    for logits in reference.logits(context):
        pieces = {name: each.take(len(logits)) for name, each in given.items()}
        yield ReferenceRows.of(logits), targets[start : start + len(logits)], pieces
        start += len(logits)


class Pieces:
    """Logits that come in pieces of any size, given out in pieces of a size that is asked for."""

    def __init__(self, pieces: Iterable[torch.Tensor]) -> None:
        self._pieces = iter(pieces)
        self._left: list[torch.Tensor] = []

    def take(self, num_rows: int) -> torch.Tensor:
        """The next `num_rows` rows, [num_rows, vocab]. Raises `ValueError` if there are not so many."""
        while (have := sum(map(len, self._left))) < num_rows:
            piece = next(self._pieces, None)
            if piece is None:
                raise ValueError(f"a model gave {have} rows of logits where {num_rows} were due")
            self._left.append(piece)
        rows = self._left[0] if len(self._left) == 1 else torch.cat(self._left)
        self._left = [rows[num_rows:]]
        return rows[:num_rows]
