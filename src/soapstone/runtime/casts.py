"""Gathered weights in the type in which an op computes.

An op under autocast casts the weights that it reads, and autograd keeps these casts for backward: as many bytes as all
of a model's weights have, although each rank keeps no more than its share of them. So their memory is freed after a
segment's forward, as that of the gathered weights is. Before its backward they are cast again.
"""

from __future__ import annotations

import torch


class Cast:
    """One cast, and what it is cast from. Autograd sees the same tensor before and after."""

    def __init__(self, source: torch.Tensor, made: torch.Tensor) -> None:
        self._source, self._made = source.data, made.data
        self._bytes = made.untyped_storage().nbytes()

    def free(self) -> None:
        self._made.untyped_storage().resize_(0)

    def make(self) -> None:
        self._made.untyped_storage().resize_(self._bytes)
        self._made.copy_(self._source)
