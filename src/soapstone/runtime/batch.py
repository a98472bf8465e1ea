"""Is this a batch that the graph can take? Asked before any tensor moves, so that no rank fails half-way."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ..errors import RankError
from ..graph import OperatorGraph
from ..parts import Range, ranges


class BatchCheck:
    def __init__(self, graph: OperatorGraph) -> None:
        self.expected = [graph.tensors[i] for i in graph.inputs]
        position = {tensor: n for n, tensor in enumerate(graph.inputs)}
        self.ranges = [(position[t], found) for op in graph.ops for t, found in ranges(op) if t in position]

    def __call__(self, batch: Sequence[Any]) -> None:
        """Raise RankError that names the tensor and what it should be."""
        if len(batch) != len(self.expected):
            raise RankError(f"step takes {len(self.expected)} tensors (inputs, then targets), but got {len(batch)}")
        for number, (given, tensor) in enumerate(zip(batch, self.expected)):
            if not isinstance(given, torch.Tensor):
                raise RankError(f"tensor {number} of the batch is {type(given).__name__}, not a tensor")
            dtype = str(given.dtype).removeprefix("torch.")
            if tuple(given.shape) != tensor.shape or dtype != tensor.dtype:
                raise RankError(
                    f"tensor {number} of the batch is {dtype} of shape {list(given.shape)}, but the graph was captured "
                    f"with {tensor.dtype} of shape {list(tensor.shape)}; pass whole batches of that shape"
                )
        for number, allowed in self.ranges:
            self._check_range(number, batch[number], allowed)

    @staticmethod
    def _check_range(number: int, given: torch.Tensor, allowed: Range) -> None:
        if given.is_floating_point():  # class probabilities
            return
        legal = (given >= 0) & (given < allowed.end)
        if allowed.ignored is not None:
            legal |= given == allowed.ignored
        if not bool(legal.all()):
            wrong = int(given[~legal][0])
            raise RankError(
                f"tensor {number} of the batch holds {wrong}, but op {allowed.op!r} takes 0 to {allowed.end - 1}"
            )
