"""What a rank keeps: constants, and one box of each parameter and buffer that its parts read."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import copy
from itertools import groupby
from math import prod
from typing import NamedTuple

import torch
from torch import nn

from .. import _core
from ..errors import RankError
from ..graph import OperatorGraph, Tensor
from ..parts import Box, common, hull, lengths, reframe
from ..simulator import Simulation
from ..strategy import Strategy
from .shard import Shard
from .sharded import Piece, Sharded
from .transports import carried

STORED = ("parameter", "buffer")


def constant(tensor: Tensor) -> torch.Tensor:
    """A constant of the graph as a torch tensor."""
    dtype = getattr(torch, tensor.dtype)
    if tensor.data is None:
        return torch.full(tensor.shape, tensor.fill or 0, dtype=dtype)
    raw = bytearray(base64.b64decode(tensor.data))
    return torch.frombuffer(raw, dtype=torch.uint8).view(dtype).reshape(tensor.shape).clone()


@carried
class Owned(NamedTuple):
    """Values of a piece of a parameter or buffer, from one of its flat elements on."""

    tensor: int
    piece: int
    first: int
    values: torch.Tensor


class Store:
    """All shards of a rank, by tensor of the graph."""

    def __init__(
        self, simulation: Simulation, device: int, state: Iterable[tuple[str, torch.Tensor]], place: torch.device,
        in_place: bool = False,
    ) -> None:  # fmt: skip
        """With `in_place` the state's tensors that this rank keeps whole and unsharded become its local parameters."""
        self.graph: OperatorGraph = simulation.played
        self.device = device
        native = simulation.native
        known = {tensor.name: i for i, tensor in enumerate(self.graph.tensors) if tensor.source in STORED}
        self.pieces = {i: native.pieces(i) for i, t in enumerate(self.graph.tensors) if t.source in STORED}
        self.counters: dict[str, torch.Tensor] = {}
        shared = self._shared_by(simulation.strategy)
        found: dict[int, Shard] = {}
        for name, full in state:
            if name in self.graph.counters:
                if in_place:
                    full.data = full.detach().to(place)
                self.counters[name] = full.detach() if in_place else full.detach().clone()
            i = known.get(name, -1)
            boxes = self.read_boxes(i)
            if boxes:
                tensor, dims = self.graph.tensors[i], self.graph.native.factoring(i)
                found[i] = Shard(tensor, dims, hull(boxes), full, place, in_place and i not in shared)
        self.shards = dict(sorted(found.items()))
        self.sharded = {
            i: Sharded(self.shards[i], self.pieces[i], device, keeps_weights=kind == "optimizer")
            for i, kind in sorted(shared.items())
        }

    def read_by(self, simulation: Simulation) -> Store:
        """The same shards as the tensors of another graph. Raises RankError unless each device reads nothing but what
        it has of them."""
        other = copy(self)
        other.graph = simulation.played
        native, tensors = simulation.native, other.graph.tensors
        own = {self.graph.tensors[i].name: i for i in self.pieces}
        numbers = {i: own.get(t.name, -1) for i, t in enumerate(tensors) if t.source in STORED}
        other.pieces = {i: native.pieces(i) for i in numbers}
        for i, number in numbers.items():
            if not self._holds(number, other.pieces[i], other.graph.native.factoring(i)):
                raise RankError(f"its devices need other values of {tensors[i].name!r} than those that they hold")
        other.shards = {i: self.shards[number] for i, number in numbers.items() if number in self.shards}
        other.sharded = {i: self.sharded[number] for i, number in numbers.items() if number in self.sharded}
        return other

    def unread(self, other: Store) -> str:
        """The name of a trained parameter that another store reads, and this one reads only in part or not at all."""
        own = {
            self.graph.tensors[i].name: [box for _, boxes in found for box in boxes] for i, found in self.pieces.items()
        }
        for i, pieces in other.pieces.items():
            name, read = other.graph.tensors[i].name, [box for _, boxes in pieces for box in boxes]
            missing = any(sum(common(box, each) for each in own.get(name, ())) < common(box, box) for box in read)
            if missing and other.graph.tensors[i].grad:
                return name
        return ""

    def _holds(self, i: int, pieces: Sequence[Piece], dims: list[list[int]]) -> bool:
        """Whether the devices that read pieces have them; those that keep shares must be the same."""
        if i < 0 or dims != self.graph.native.factoring(i):
            return False
        if i in self.sharded:
            return list(pieces) == list(self.pieces[i])
        every = ((device, box) for devices, boxes in pieces for device in devices for box in boxes)
        return all(self._has(i, device, box) for device, box in every)

    def _has(self, i: int, device: int, box: Box) -> bool:
        """Whether a device has all of a box."""
        own = (each for devices, boxes in self.pieces[i] if device in devices for each in boxes)
        return sum(common(box, each) for each in own) == common(box, box)

    def _shared_by(self, strategy: Strategy) -> dict[int, str]:
        """The parameters of which this rank keeps a share, each with its `shard`: "optimizer" or "all"."""
        found: dict[int, str] = {}
        for op, trained in zip(self.graph.ops, self.graph.trains):
            shard = strategy[op.name].shard
            for i in trained if shard != "none" else ():
                if any(self.device in holders and len(holders) > 1 for holders, _ in self.pieces[i]):
                    found.setdefault(i, shard)
        return found

    def is_read_whole(self, i: int) -> bool:
        """Whether each element of a tensor is read by some rank."""
        boxes = [box for _, boxes in self.pieces[i] for box in boxes]
        return sum(prod(lengths(box)) for box in boxes) == prod(self.graph.tensors[i].shape)

    def read_boxes(self, i: int) -> list[Box]:
        """What this rank's parts read of a tensor: disjoint boxes. Elsewhere in its shard values are never updated."""
        return [box for holders, boxes in self.pieces.get(i, ()) if self.device in holders for box in boxes]

    def parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """For an optimizer: shards, or where the rank keeps shares of one, these."""
        for i, shard in self.shards.items():
            if i in self.sharded:
                yield shard.name, self.sharded[i].parameter
            elif isinstance(shard.tensor, nn.Parameter):
                yield shard.name, shard.tensor

    def leaves(self) -> list[torch.Tensor]:
        """What autograd adds gradients to."""
        return [shard.tensor for shard in self.shards.values() if shard.tensor.requires_grad]

    def drop_gradients(self) -> None:
        for tensor in (*self.leaves(), *(each.parameter for each in self.sharded.values())):
            tensor.grad = None

    def owned(self, gradients: bool) -> list[Owned]:
        """What this rank is the first holder of, or has a share of, on the CPU."""
        found: list[Owned] = []
        for i, each in self.sharded.items():
            values = _gradient(each.parameter) if gradients else each.parameter.detach()
            found += [Owned(i, piece, first, share) for piece, first, share in each.owned(values)]
        for i, pieces in self.pieces.items():
            if i in self.sharded or (gradients and not self.graph.tensors[i].grad):
                continue
            for piece, (holders, boxes) in enumerate(pieces):
                if holders[0] == self.device:
                    shard = self.shards[i]
                    local = _gradient(shard.tensor) if gradients else shard.tensor.detach()
                    flat = torch.cat([shard.window(local, box).reshape(-1) for box in boxes])
                    found.append(Owned(i, piece, 0, flat.to("cpu", copy=True)))
        return found

    def first_windows(self) -> Iterator[torch.Tensor]:
        """The gradients that this rank is the first holder of, or has a share of: those of all ranks are each element
        once."""
        yield from (_gradient(each.parameter) for each in self.sharded.values())
        for i, pieces in self.pieces.items():
            if self.graph.tensors[i].grad and i not in self.sharded:
                for holders, boxes in pieces:
                    if holders[0] == self.device:
                        shard = self.shards[i]
                        yield from (shard.window(_gradient(shard.tensor), box) for box in boxes)

    def assemble(self, shares: list[list[Owned]], start: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Whole tensors by name, from what every rank owns; elements that no rank reads are as in `start`, or zero."""
        tensors, whole_tensors = self.graph.tensors, dict[int, torch.Tensor]()
        rows = sorted((row for share in shares for row in share), key=lambda row: row[:3])
        for (i, piece), portions in groupby(rows, key=lambda row: row[:2]):
            values = torch.cat([row.values for row in portions])
            if i not in whole_tensors:
                sizes = [n for axis in self.graph.native.factoring(i) for n in axis]
                unread = start.get(tensors[i].name)
                whole_tensors[i] = values.new_zeros(sizes) if unread is None else unread.detach().clone().reshape(sizes)
            boxes = self.pieces[i][piece][1]
            for box, window in zip(boxes, torch.split(values, [prod(lengths(box)) for box in boxes])):
                whole_tensors[i][tuple(slice(lo, hi) for lo, hi in box)] = window.view(lengths(box))
        return {tensors[i].name: full.reshape(tensors[i].shape) for i, full in sorted(whole_tensors.items())}

    def load(self, state: Mapping[str, torch.Tensor]) -> None:
        """Take this rank's boxes of a whole state that fits the model."""
        with torch.no_grad():
            for i, shard in self.shards.items():
                if i in self.sharded:
                    self.sharded[i].load(state[shard.name])
                elif shard.name in state:  # a buffer that is not persistent is in no state
                    shard.tensor.copy_(shard.cut(state[shard.name]))
            for name, counter in self.counters.items():
                counter.copy_(state[name])

    def is_whole(self, i: int, box: Box, dims: list[list[int]]) -> bool:
        """Whether a box is all of this rank's shard, element for element."""
        shard = self.shards[i]
        return list(box) == list(shard.box) and dims == [list(axis) for axis in shard.dims]

    def update(self, i: int, local: torch.Tensor, box: Box, dims: list[list[int]], values: torch.Tensor) -> None:
        """Set a box of a buffer, in this rank's shard or a copy of it."""
        shard = self.shards[i]
        for piece in _core.project(list(box), dims, shard.dims):
            shard.window(local, piece).copy_(
                reframe(values, box, dims, piece, shard.dims).reshape([hi - lo for lo, hi in piece])
            )


def _gradient(leaf: torch.Tensor) -> torch.Tensor:
    """To be read: where there is none, an optimizer shall find none either."""
    return torch.zeros_like(leaf) if leaf.grad is None else leaf.grad
