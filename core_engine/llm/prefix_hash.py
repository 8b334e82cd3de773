"""Names of full KV blocks: a hash chain over tokens and everything else that their keys and values depend on.

The same in every process, so that a router can tell which engine holds a prefix. Every link carries typed,
length-prefixed fields (nothing can be moved from one field into the next): its parent, the weights' epoch, the adapter,
the salt, the tokens. The salt says who may share the block: blocks wholly inside a predictor's own template are shared
by tenants, every other block is its tenant's alone, so that no tenant can probe another's prompts by their timing.
"""

from __future__ import annotations

import hashlib
from array import array
from typing import Any

from core_engine.llm.sequence import Sequence

DIGEST_BYTES = 16


class PrefixHasher:
    """`weights_epoch` names the weights and their precision: other weights, other names. `adapter` "" is none.

    `fixed_positions`: of a model whose rotary frequencies follow the prompt's length beyond so many tokens (see
    `rope_scaling`). Such prompts share blocks with prompts of their own length only.
    """

    def __init__(
        self, block_size: int, weights_epoch: str, adapter: str = "", fixed_positions: int | None = None
    ) -> None:
        self.block_size = block_size
        self._fixed_positions = fixed_positions
        self._model = _field(b"w", weights_epoch.encode()) + _field(b"a", adapter.encode())

    def extend(self, sequence: Sequence, num_blocks: int) -> None:
        """Name the first `num_blocks` blocks of a sequence, all of them full, in `sequence.block_hashes`."""
        hashes, size, ids = sequence.block_hashes, self.block_size, sequence.token_ids
        if len(hashes) >= num_blocks:
            return
        request = sequence.request
        length = self._length(sequence.num_prompt_tokens)
        shared = self._root(b"T", request.predictor.encode() + b":%d" % request.version, length)
        own = self._root(b"t", request.tenant.encode(), length)
        for index in range(len(hashes), num_blocks):
            end = (index + 1) * size
            root = shared if end <= request.template_tokens else own
            link = root.copy()
            link.update(_field(b"p", hashes[-1] if hashes else b""))
            link.update(_field(b"i", array("I", ids[end - size : end]).tobytes()))
            hashes.append(link.digest())

    def _length(self, num_prompt_tokens: int) -> bytes:
        """What a prompt's keys have of its length: nothing, but with dynamic frequencies beyond the fixed ones."""
        if self._fixed_positions is None or num_prompt_tokens <= self._fixed_positions:
            return b""
        return _field(b"l", b"%d" % num_prompt_tokens)

    def _root(self, kind: bytes, salt: bytes, length: bytes) -> Any:
        """A hash that has taken in what all links with this salt have in common."""
        return hashlib.blake2b(self._model + length + _field(kind, salt), digest_size=DIGEST_BYTES)


def _field(kind: bytes, data: bytes) -> bytes:
    return kind + len(data).to_bytes(4, "little") + data
