"""Is this a batch that the graph can take? Asked before any tensor moves, so that no rank fails half-way."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ..errors import RankError
from ..graph import OperatorGraph
from ..parts import Range, ranges


class BatchCheck:
    """`slices` are what this rank reads of each tensor: a batch may also be just that."""

    def __init__(self, graph: OperatorGraph, slices: Sequence[tuple[slice, ...]]) -> None:
        self.expected = [graph.tensors[i] for i in graph.inputs]
        self.slices = slices
        self.local = [tuple(side.stop - side.start for side in sides) for sides in slices]
        self.batch_dims = graph.settings.batch_dims
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

    def cut(self, batch: Sequence[torch.Tensor], place: torch.device) -> list[torch.Tensor]:
        """What this rank reads of a batch, where its tensors live; each an object of its own, without a history."""
        return [
            (given if tuple(given.shape) == local else given[sides]).detach().to(place)
            for given, sides, local in zip(batch, self.slices, self.local)
        ]

    def _check_tensor(self, number: int, given: Any) -> None:
        tensor = self.expected[number]
        if not isinstance(given, torch.Tensor):
            raise RankError(f"tensor {number} of the batch is {type(given).__name__}, not a tensor")
        dtype, shape = str(given.dtype).removeprefix("torch."), tuple(given.shape)
        if dtype == tensor.dtype and shape in (tensor.shape, self.local[number]):
            return
        axis = self.batch_dims[number] if number < len(self.batch_dims) else None
        same = axis is not None and len(shape) == len(tensor.shape)
        ragged = same and all(a == b for i, (a, b) in enumerate(zip(shape, tensor.shape)) if i != axis)
        remedy = (
            "a last batch that is smaller cannot be trained on: pass drop_last=True to the DataLoader"
            if ragged and axis is not None and shape[axis] < tensor.shape[axis] and dtype == tensor.dtype
            else f"pass whole batches of that shape, or this rank's slice {list(self.local[number])}"
        )
        raise RankError(
            f"tensor {number} of the batch is {dtype} of shape {list(shape)}, but the graph was captured "
            f"with {tensor.dtype} of shape {list(tensor.shape)}; {remedy}"
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
