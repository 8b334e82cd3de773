"""Where keys and values lie: one tensor for all layers, made by the decoder whose kernels know its layout."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class KvCache:
    """`num_blocks` blocks of `block_size` tokens; block b is the b-th along `block_dim` of `tensor`."""

    tensor: torch.Tensor
    block_dim: int
    block_size: int

    @property
    def num_blocks(self) -> int:
        return self.tensor.shape[self.block_dim]

    @property
    def num_bytes(self) -> int:
        return self.tensor.nbytes

    def copy_block(self, source: int, copy: int) -> None:
        """All layers' keys and values of one block into another."""
        self.tensor.select(self.block_dim, copy).copy_(self.tensor.select(self.block_dim, source))
