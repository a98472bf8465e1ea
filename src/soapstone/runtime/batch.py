"""Is this a batch that the graph can take? Asked before any tensor moves, so that no rank fails half-way."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ..errors import RankError
from ..graph import OperatorGraph
from ..parts import Range, ranges
from .agreement import checksum

COMPARED = 64  # the most samples of the first batch that ranks compare


class BatchCheck:
    """`read` is what this rank reads of each tensor of a microbatch. A batch may also be just its `slices`: from what
    it reads of the first microbatch to what it reads of the last."""

    def __init__(self, graph: OperatorGraph, read: Sequence[tuple[slice, ...]], microbatches: int = 1) -> None:
        self.expected = [graph.tensors[i] for i in graph.inputs]
        self.batch_dims = graph.settings.batch_dims
        self.read, self.microbatches = read, microbatches
        self.slices = tuple(self._hull(number, sides) for number, sides in enumerate(read))
        self.local = [tuple(side.stop - side.start for side in sides) for sides in self.slices]
        position = {tensor: n for n, tensor in enumerate(graph.inputs)}
        self.ranges = [(position[t], found) for op in graph.ops for t, found in ranges(op) if t in position]

    def __call__(self, batch: Sequence[Any]) -> None:
        """Raise RankError that names the tensor and what it should be."""
        if len(batch) != len(self.expected):
            raise RankError(f"step takes {len(self.expected)} tensors (inputs, then targets), but got {len(batch)}")
        for number, given in enumerate(batch):
            self._check_tensor(number, given)
        for number, allowed in self.ranges:
            self._check_range(number, batch[number], allowed)

    def is_whole(self, batch: Sequence[Any]) -> bool:
        """Whether these are tensors of the shapes and types that it expects."""
        return self.is_like(batch) and all(tuple(x.shape) == t.shape for x, t in zip(batch, self.expected))

    def is_sliced(self, batch: Sequence[Any]) -> bool:
        """Whether they may be this rank's slices."""
        return self.is_like(batch) and all(
            tuple(given.shape) in (tensor.shape, local)
            for given, tensor, local in zip(batch, self.expected, self.local)
        )

    def is_like(self, batch: Sequence[Any]) -> bool:
        """Whether they have the types and numbers of axes."""
        return len(batch) == len(self.expected) and all(
            isinstance(given, torch.Tensor)
            and str(given.dtype) == f"torch.{tensor.dtype}"
            and given.ndim == len(tensor.shape)
            for given, tensor in zip(batch, self.expected)
        )

    def _hull(self, number: int, sides: tuple[slice, ...]) -> tuple[slice, ...]:
        axis = self.batch_dims[number] if number < len(self.batch_dims) else None
        if axis is None or sides[axis].start == sides[axis].stop:
            return sides
        before = (self.microbatches - 1) * self._samples(number, axis)
        return (*sides[:axis], slice(sides[axis].start, before + sides[axis].stop), *sides[axis + 1 :])

    def _samples(self, number: int, axis: int) -> int:
        """Of a microbatch."""
        return self.expected[number].shape[axis] // self.microbatches

    def cut(self, batch: Sequence[torch.Tensor], place: torch.device) -> list[list[torch.Tensor]]:
        """What this rank reads of each microbatch, where its tensors live; each an object of its own, without a
        history."""
        own = [
            (given if tuple(given.shape) == local else given[sides]).detach().to(place)
            for given, sides, local in zip(batch, self.slices, self.local)
        ]
        return [[self._of(microbatch, *given) for given in enumerate(own)] for microbatch in range(self.microbatches)]

    def sums(self, batch: Sequence[torch.Tensor]) -> dict[str, str]:
        """Checksums of some of the samples that this rank reads, by tensor and position in the whole batch."""
        found: dict[str, str] = {}
        for number, (given, sides, local) in enumerate(zip(batch, self.slices, self.local)):
            own = given if tuple(given.shape) == local else given[sides]
            axis = self.batch_dims[number] if number < len(self.batch_dims) else None
            if not own.numel():
                continue
            if axis is None:
                found[f"{number} {sides}"] = checksum({0: own})
                continue
            rest = (*sides[:axis], *sides[axis + 1 :])
            every = -(-self.expected[number].shape[axis] // COMPARED)
            for place in range(sides[axis].start, sides[axis].stop):
                if place % every == 0:
                    found[f"{number} {place} {rest}"] = checksum({0: own.select(axis, place - sides[axis].start)})
        return found

    def _of(self, microbatch: int, number: int, given: torch.Tensor) -> torch.Tensor:
        axis = self.batch_dims[number] if number < len(self.batch_dims) else None
        if axis is None or self.microbatches == 1:
            return given if microbatch == 0 else given.detach()
        side = self.read[number][axis]
        size = side.stop - side.start
        return given.narrow(axis, microbatch * self._samples(number, axis) if size else 0, size).contiguous()

    def _check_tensor(self, number: int, given: Any) -> None:
        tensor = self.expected[number]
        if not isinstance(given, torch.Tensor):
            raise RankError(f"tensor {number} of the batch is {type(given).__name__}, not a tensor")
        dtype, shape = str(given.dtype).removeprefix("torch."), tuple(given.shape)
        if dtype == tensor.dtype and shape in (tensor.shape, self.local[number]):
            return
        raise RankError(
            f"tensor {number} of the batch is {dtype} of shape {list(shape)}, but the graph was captured "
            f"with {tensor.dtype} of shape {list(tensor.shape)}; pass whole batches of that type and as many axes, or "
            f"this rank's slice {list(self.local[number])}"
        )

    @staticmethod
    def _check_range(number: int, given: torch.Tensor, allowed: Range) -> None:
        if given.is_floating_point() or given.is_cuda or not given.numel():  # probabilities; or asking would take long
            return
        least, most = torch.aminmax(given)
        if least >= 0 and most < allowed.end:
            return
        legal = (given >= 0) & (given < allowed.end)
        if allowed.ignored is not None:
            legal |= given == allowed.ignored
        if not bool(legal.all()):
            wrong = int(given[~legal][0])
            raise RankError(
                f"tensor {number} of the batch holds {wrong}, but op {allowed.op!r} takes 0 to {allowed.end - 1}"
            )
