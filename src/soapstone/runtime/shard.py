"""One rank's box of a parameter or buffer, and gradients that may be written to."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import nn

from ..graph import Tensor
from ..parts import Box, reframe, whole


def own_memory(leaves: Iterable[torch.Tensor]) -> None:
    """Give each gradient memory of its own. Autograd may leave a leaf with a view of what another leaf has for its
    gradient, or of what a message is sent from; adding to it in place later would change that, too."""
    for leaf in leaves:
        if leaf.grad is not None and _uses(leaf.grad) > _UNSHARED:
            leaf.grad = leaf.grad.clone()


def _uses(tensor: torch.Tensor) -> int:
    return int(torch._C._storage_Use_Count(tensor.untyped_storage()._cdata))


_UNSHARED = _uses(torch.empty(1))


class Shard:
    """One rank's box of a parameter or buffer: the hull of what its parts read, over the tensor's own dims."""

    def __init__(
        self, tensor: Tensor, dims: list[list[int]], box: Box, full: torch.Tensor, place: torch.device, in_place: bool
    ) -> None:
        self.name, self.shape, self.dims, self.box = tensor.name, tensor.shape, dims, box
        is_parameter = tensor.source == "parameter"
        is_all = list(box) == whole(dims) and full.requires_grad == tensor.grad
        if in_place and is_all and isinstance(full, nn.Parameter) == is_parameter:
            full.data = full.detach().to(place).contiguous()
            self.tensor = full
        else:
            local = self.cut(full.to(place)).clone(memory_format=torch.contiguous_format)
            self.tensor = nn.Parameter(local, requires_grad=tensor.grad) if is_parameter else local
        self._bytes = self.tensor.untyped_storage().nbytes()

    def cut(self, full: torch.Tensor) -> torch.Tensor:
        flat = [[n] for n in self.shape]
        return reframe(full.detach(), whole(flat), flat, self.box, self.dims)

    def window(self, local: torch.Tensor, box: Box) -> torch.Tensor:
        """A view of a local tensor (the shard, or its gradient) at a box inside the shard's."""
        view = local.view([hi - lo for lo, hi in self.box])
        return view[tuple(slice(lo - start, hi - start) for (lo, hi), (start, _) in zip(box, self.box))]

    def allocate(self) -> bool:
        """Give it memory; False where it has it."""
        storage = self.tensor.untyped_storage()
        missing = storage.nbytes() < self._bytes
        if missing:
            storage.resize_(self._bytes)
        return missing

    def free(self) -> None:
        """Take its memory until the next `allocate`; views of it have it back then, too."""
        self.tensor.untyped_storage().resize_(0)

    @contextmanager
    def in_memory(self) -> Iterator[None]:
        """With memory, whatever is in it: torch cuts no view of a tensor without."""
        missing = self.allocate()
        yield
        if missing:
            self.free()

    def gradient(self) -> torch.Tensor:
        """The gradient, zeros where nothing was added yet."""
        if self.tensor.grad is None:
            self.tensor.grad = torch.zeros_like(self.tensor)
        return self.tensor.grad

    def own_gradient(self) -> torch.Tensor:
        """The same, in memory that may be written to."""
        own_memory([self.tensor])
        return self.gradient()
