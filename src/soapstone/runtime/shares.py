"""What a microbatch counts in the loss of its batch."""

from __future__ import annotations

from collections.abc import Callable

import torch

from .placement import Placement

Agreed = Callable[[], torch.Tensor | None]


class Shares:
    """Of one step; `agreed` gives the weight of each microbatch in a mean, over all ranks, where it is known early."""

    def __init__(self, placement: Placement, agreed: Agreed) -> None:
        self._placement, self._agreed = placement, agreed

    def of(self, microbatch: int, like: torch.Tensor) -> torch.Tensor:
        """The share, as a tensor like another one."""
        share = self._share(microbatch)
        if isinstance(share, float):
            return torch.full_like(like, share)
        return share.to(like).expand(like.shape)

    def _share(self, microbatch: int) -> torch.Tensor | float:
        """All of it in a sum, in a mean what it has of the weight."""
        count = self._placement.microbatches
        if count == 1 or self._placement.joins == "sum":
            return 1.0
        if not self._placement.has_early_weight:
            return 1 / count
        weights = self._weights()
        return weights[microbatch] / weights.sum()

    @property
    def weight(self) -> torch.Tensor:
        """What all of a mean is divided by."""
        return self._weights().sum()

    def _weights(self) -> torch.Tensor:
        found = self._agreed()
        assert found is not None
        return found
