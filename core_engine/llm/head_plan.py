"""How a head goes through the engine: the sequences that it takes, and its values once the last of them has run.

`classify` and `embed` take one sequence, the prompt. `score` takes one per branch of its label trie, prompt and path;
they share the prompt through the prefix cache. The first has the attempt's own id, the others `<id>/1`, `<id>/2`, ...
Pure Python: what is done with hidden states is in `heads`.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

from core_engine.contracts import GenerateRequest, Head, HeadKind, SamplingParams
from core_engine.errors import InvalidRequest, UnknownName
from core_engine.llm.label_trie import Branch, LabelTrie, check_labels


@dataclass(frozen=True, slots=True)
class Choice:
    """A position of a sequence, and the token ids between which the hidden state there decides."""

    position: int
    token_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class BranchHead(Head):
    """The part of a score that one sequence answers. Made here, never sent: its `labels` are empty."""

    choices: tuple[Choice, ...] = ()  # by ascending position


def check_head(request: GenerateRequest, vocab_size: int, held: Collection[str]) -> None:
    """A head that can be run, if the request has one; `held` are the names of the linear heads that the engine holds.

    Raises:
        InvalidRequest: labels that `check_labels` refuses, or dials of sampling that a head has no use for.
        UnknownName: no such linear head.
    """
    head = request.head
    if head is None:
        return
    _check_no_completion_asked(request.sampling)
    if head.kind is HeadKind.SCORE:
        check_labels(head.labels, head.normalise, vocab_size)
    elif head.kind is HeadKind.CLASSIFY and head.name not in held:
        known = ", ".join(sorted(held)) or "none"
        raise UnknownName(
            f"this engine holds no head {head.name!r}; it holds {known}", field="head.name", value=head.name
        )


def _check_no_completion_asked(sampling: SamplingParams) -> None:
    """A head writes nothing: what describes a completion beside it was meant for another request."""
    for name in ("logprobs", "prompt_logprobs", "json_schema"):
        value = getattr(sampling, name)
        if value is not None:
            raise InvalidRequest(
                f"{name} is {value!r}, expected none beside a head", field=name, value=value, expected="none"
            )


class HeadPlan:
    """One attempt's head. `requests` are its sequences; `collect` is told what each has given."""

    def __init__(self, request: GenerateRequest) -> None:
        assert request.head is not None
        self.request = request
        self._trie: LabelTrie | None = None
        self._branches: dict[str, Branch] = {}
        self._logprobs: dict[int, tuple[float, ...]] = {}
        self.requests = (request,) if request.head.kind is not HeadKind.SCORE else self._spread(request.head)

    def _spread(self, head: Head) -> tuple[GenerateRequest, ...]:
        self._trie = trie = LabelTrie(head.labels, head.normalise)
        ids = (self.request.attempt_id, *(f"{self.request.attempt_id}/{k}" for k in range(1, len(head.labels))))
        self._branches = dict(zip(ids, trie.branches(), strict=False))
        return tuple(self._part(sequence_id, head, trie) for sequence_id in self._branches)

    def _part(self, sequence_id: str, head: Head, trie: LabelTrie) -> GenerateRequest:
        branch, last = self._branches[sequence_id], len(self.request.prompt_token_ids) - 1
        choices = tuple(Choice(last + trie.depth(node), trie.choices(node)) for node in branch.nodes)
        own = BranchHead(head.kind, normalise=head.normalise, choices=choices)
        prompt = self.request.prompt_token_ids + branch.path
        return replace(self.request, attempt_id=sequence_id, prompt_token_ids=prompt, head=own)

    def collect(self, sequence_id: str, values: tuple[float, ...]) -> tuple[float, ...] | None:
        """Take what one sequence gave: the whole head's values once every sequence has, else None.

        For a score, `values` are log-probabilities of the sequence's choices, one after the other.
        """
        if self._trie is None:
            return values
        start = 0
        for node in self._branches.pop(sequence_id).nodes:
            end = start + len(self._trie.choices(node))
            self._logprobs[node] = values[start:end]
            start = end
        return None if self._branches else self._trie.probabilities(self._logprobs)
