"""What a rank keeps: constants, and one box of each parameter and buffer that its parts read."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Iterator, Mapping

import torch
from torch import nn

from .. import _core
from ..graph import OperatorGraph, Tensor
from ..parts import Box, hull, reframe, whole
from ..simulator import Simulation

STORED = ("parameter", "buffer")


def constant(tensor: Tensor) -> torch.Tensor:
    """A constant of the graph as a torch tensor."""
    dtype = getattr(torch, tensor.dtype)
    if tensor.data is None:
        return torch.full(tensor.shape, tensor.fill or 0, dtype=dtype)
    raw = bytearray(base64.b64decode(tensor.data))
    return torch.frombuffer(raw, dtype=torch.uint8).view(dtype).reshape(tensor.shape).clone()


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

    def __init__(self, tensor: Tensor, dims: list[list[int]], box: Box, full: torch.Tensor) -> None:
        self.name, self.shape, self.dims, self.box = tensor.name, tensor.shape, dims, box
        local = self.cut(full).clone(memory_format=torch.contiguous_format)
        self.tensor = nn.Parameter(local, requires_grad=tensor.grad) if tensor.source == "parameter" else local

    def cut(self, full: torch.Tensor) -> torch.Tensor:
        flat = [[n] for n in self.shape]
        return reframe(full.detach(), whole(flat), flat, self.box, self.dims)

    def window(self, local: torch.Tensor, box: Box) -> torch.Tensor:
        """A view of a local tensor (the shard, or its gradient) at a box inside the shard's."""
        view = local.view([hi - lo for lo, hi in self.box])
        return view[tuple(slice(lo - start, hi - start) for (lo, hi), (start, _) in zip(box, self.box))]

    def gradient(self) -> torch.Tensor:
        """The gradient, zeros where nothing was added yet."""
        if self.tensor.grad is None:
            self.tensor.grad = torch.zeros_like(self.tensor)
        return self.tensor.grad

    def own_gradient(self) -> torch.Tensor:
        """The same, in memory that may be written to."""
        own_memory([self.tensor])
        return self.gradient()


class Store:
    """All shards of a rank, by tensor of the graph."""

    def __init__(
        self, simulation: Simulation, device: int, state: Iterable[tuple[str, torch.Tensor]], place: torch.device
    ) -> None:
        self.graph: OperatorGraph = simulation.graph
        self.device = device
        native = simulation.native
        known = {tensor.name: i for i, tensor in enumerate(self.graph.tensors) if tensor.source in STORED}
        self.pieces = {i: native.pieces(i) for i, t in enumerate(self.graph.tensors) if t.source in STORED}
        self.counters: dict[str, torch.Tensor] = {}
        found: dict[int, Shard] = {}
        for name, full in state:
            if name in self.graph.counters:
                self.counters[name] = full.detach().clone()
            i = known.get(name, -1)
            boxes = self.read_boxes(i)
            if boxes:
                found[i] = Shard(self.graph.tensors[i], self.graph.native.factoring(i), hull(boxes), full.to(place))
        self.shards = dict(sorted(found.items()))

    def read_boxes(self, i: int) -> list[Box]:
        """What this rank's parts read of a tensor: disjoint boxes. Elsewhere in its shard values are never updated."""
        return [box for holders, boxes in self.pieces.get(i, ()) if self.device in holders for box in boxes]

    def parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        for shard in self.shards.values():
            if isinstance(shard.tensor, nn.Parameter):
                yield shard.name, shard.tensor

    def owned(self, gradients: bool) -> list[tuple[int, Box, torch.Tensor]]:
        """What this rank is the first holder of: (tensor, box, values), on the CPU."""
        found: list[tuple[int, Box, torch.Tensor]] = []
        for i, pieces in self.pieces.items():
            if gradients and not self.graph.tensors[i].grad:
                continue
            for holders, boxes in pieces:
                if holders[0] == self.device:
                    shard = self.shards[i]
                    local = shard.gradient() if gradients else shard.tensor.detach()
                    found += [(i, box, shard.window(local, box).to("cpu", copy=True)) for box in boxes]
        return found

    def first_windows(self) -> Iterator[torch.Tensor]:
        """The gradients that this rank is the first holder of: those of all ranks are each element once."""
        for i, pieces in self.pieces.items():
            if self.graph.tensors[i].grad:
                for holders, boxes in pieces:
                    if holders[0] == self.device:
                        yield from (self.shards[i].window(self.shards[i].gradient(), box) for box in boxes)

    def assemble(
        self, shares: list[list[tuple[int, Box, torch.Tensor]]], start: Mapping[str, torch.Tensor]
    ) -> dict[str, torch.Tensor]:
        """Whole tensors by name, from what every rank owns; elements that no rank reads are as in `start`, or zero."""
        whole_tensors: dict[int, torch.Tensor] = {}
        for i, box, values in (row for share in shares for row in share):
            tensor = self.graph.tensors[i]
            if i not in whole_tensors:
                sizes = [n for axis in self.graph.native.factoring(i) for n in axis]
                unread = start.get(tensor.name)
                whole_tensors[i] = values.new_zeros(sizes) if unread is None else unread.detach().clone().reshape(sizes)
            whole_tensors[i][tuple(slice(lo, hi) for lo, hi in box)] = values
        tensors = self.graph.tensors
        return {tensors[i].name: full.reshape(tensors[i].shape) for i, full in sorted(whole_tensors.items())}

    def load(self, state: Mapping[str, torch.Tensor]) -> None:
        """Take this rank's boxes of a whole state that fits the model."""
        with torch.no_grad():
            for shard in self.shards.values():
                if shard.name in state:  # a buffer that is not persistent is in no state
                    shard.tensor.copy_(shard.cut(state[shard.name]))
            for name, counter in self.counters.items():
                counter.copy_(state[name])

    def is_whole(self, i: int, box: Box, dims: list[list[int]]) -> bool:
        """Whether a box is all of this rank's shard, element for element."""
        shard = self.shards[i]
        return list(box) == list(shard.box) and dims == [list(axis) for axis in shard.dims]

    def update(self, i: int, box: Box, dims: list[list[int]], values: torch.Tensor) -> None:
        """Set a box of a buffer."""
        shard = self.shards[i]
        for piece in _core.project(list(box), dims, shard.dims):
            shard.window(shard.tensor, piece).copy_(
                reframe(values, box, dims, piece, shard.dims).reshape([hi - lo for lo, hi in piece])
            )
