"""The token trie of a score's labels: which hidden states decide between them, and what those make of each label.

A node is a prefix of labels; its children are the tokens that follow it in some label. P(label) is the product of the
choices on its path: over a node's children (`Normalise.LABELS`, so that only their rows of the LM head are computed and
the labels' probabilities sum to one), or over the whole vocabulary (`Normalise.VOCAB`). Pure Python, no tensor.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise

from core_engine.contracts import Normalise
from core_engine.errors import InvalidRequest

MAX_LABELS = 1024
MAX_LABEL_TOKENS = 64
ROOT = 0

Label = tuple[int, ...]


@dataclass(slots=True)
class Node:
    """After `depth` tokens of the label, the children by token id, in the order in which the labels name them."""

    depth: int
    children: dict[int, int] = field(default_factory=dict)  # token id -> node


@dataclass(frozen=True, slots=True)
class Branch:
    """Tokens after the prompt that one sequence computes, and the nodes on them that it answers, the shallowest first.

    A node that several branches pass is answered by the first of them only.
    """

    path: Label
    nodes: tuple[int, ...]


class LabelTrie:
    """The trie of `labels`, which `check_labels` has passed."""

    def __init__(self, labels: tuple[Label, ...], normalise: Normalise) -> None:
        self._labels = labels
        self._nodes = [Node(0)]
        self._paths = [self._insert(label) for label in labels]
        # one child among one is certain: nothing has to be computed for it
        least = 1 if normalise is Normalise.VOCAB else 2
        self._asked = [len(node.children) >= least for node in self._nodes]

    def choices(self, node: int) -> Label:
        """The token ids between which `node` decides."""
        return tuple(self._nodes[node].children)

    def depth(self, node: int) -> int:
        return self._nodes[node].depth

    def branches(self) -> tuple[Branch, ...]:
        """The fewest sequences that pass every node that decides something."""
        chains = [[node for node in path if self._asked[node]] for path in self._paths]
        passed = {node for chain in chains for node in chain[:-1]}
        tips = {chain[-1]: (label, chain) for label, chain in zip(self._labels, chains, strict=True) if chain}
        answered: set[int] = set()
        branches = []
        for tip, (label, chain) in tips.items():
            if tip not in passed:
                own = tuple(node for node in chain if node not in answered)
                answered.update(own)
                branches.append(Branch(label[: self.depth(tip)], own))
        return tuple(branches)

    def probabilities(self, logprobs: Mapping[int, tuple[float, ...]]) -> tuple[float, ...]:
        """P of each label. `logprobs` has, for every node of `branches`, those of its `choices` in their order."""
        found = {node: dict(zip(self.choices(node), values, strict=True)) for node, values in logprobs.items()}
        return tuple(
            self._probability(label, path, found) for label, path in zip(self._labels, self._paths, strict=True)
        )

    def _probability(self, label: Label, path: list[int], logprobs: Mapping[int, Mapping[int, float]]) -> float:
        steps = (logprobs[node][token] for node, token in zip(path, label, strict=False) if self._asked[node])
        return math.exp(math.fsum(steps))

    def _insert(self, label: Label) -> list[int]:
        """The nodes of `label` from the root on; the last one stands after its last token."""
        path = [ROOT]
        for token in label:
            children = self._nodes[path[-1]].children
            if token not in children:
                children[token] = len(self._nodes)
                self._nodes.append(Node(len(path)))
            path.append(children[token])
        return path


def check_labels(labels: tuple[Label, ...], normalise: Normalise, vocab_size: int) -> None:
    """Labels that can be told apart, within the bounds.

    A label that begins another is refused where the choice is between labels: after it there is one more way to go on,
    to end, and no token stands for that. Give every label the same last token (the model's eos) to make it one.

    Raises:
        InvalidRequest: names field, value and expectation.
    """
    least = 2 if normalise is Normalise.LABELS else 1
    if not least <= len(labels) <= MAX_LABELS:
        _refuse("labels", f"{len(labels)} labels", f"{least} to {MAX_LABELS} with normalise = {normalise}")
    for index, label in enumerate(labels):
        if not 1 <= len(label) <= MAX_LABEL_TOKENS:
            _refuse(f"labels[{index}]", f"{len(label)} tokens", f"1 to {MAX_LABEL_TOKENS} tokens")
        if not 0 <= min(label) <= max(label) < vocab_size:
            _refuse(f"labels[{index}]", list(label), f"token ids from 0 to {vocab_size - 1}")
    _check_distinct(labels)
    if normalise is Normalise.LABELS:
        _check_not_nested(labels)


def _check_distinct(labels: tuple[Label, ...]) -> None:
    first: dict[Label, int] = {}
    for index, label in enumerate(labels):
        if first.setdefault(label, index) != index:
            _refuse(f"labels[{index}]", list(label), f"another label than labels[{first[label]}]")


def _check_not_nested(labels: tuple[Label, ...]) -> None:
    """In sorted order, whatever begins with a label comes right after it."""
    order = sorted(range(len(labels)), key=lambda index: labels[index])
    for one, other in pairwise(order):
        if labels[other][: len(labels[one])] == labels[one]:
            expected = f"a label that does not begin labels[{other}], such as one that ends with eos"
            _refuse(f"labels[{one}]", list(labels[one]), expected)


def _refuse(name: str, value: object, expected: str) -> None:
    field = f"head.{name}"
    raise InvalidRequest(f"{field} is {value}, expected {expected}", field=field, value=value, expected=expected)
