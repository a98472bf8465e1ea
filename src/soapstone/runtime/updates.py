"""The next values of buffers: parts find them in a step, and its end sets them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from ..parts import Box, Part
from .keys import Update
from .placement import Placement
from .store import Store


@dataclass(frozen=True, slots=True)
class _Target:
    """The box of a buffer that a part updates, and the dims that it is over; `is_whole`: it is all of the shard."""

    box: Box
    dims: list[list[int]]
    is_whole: bool


class BufferUpdates:
    """Where each update of a device's parts goes."""

    def __init__(self, placement: Placement, device: int, store: Store) -> None:
        self._store = store
        self._targets: dict[Update, _Target] = {}
        for op, part in dict.fromkeys((task.op, task.part) for task in placement.tasks.get(device, ())):
            updated = {operand.tensor for operand in placement.graph.ops[op].updates}
            reader = Part(placement.graph, op, placement.degrees[op], part)
            for number, operand in enumerate(reader.op.inputs):
                if operand.tensor in updated & store.shards.keys():
                    box = reader.input_box(number)
                    dims = [list(axis) for axis in reader.op.values[operand.value].factoring]
                    target = _Target(box, dims, store.is_whole(operand.tensor, box, dims))
                    self._targets[Update(operand.tensor, part)] = target

    def apply(self, values: Mapping[Update, torch.Tensor], to: Mapping[int, torch.Tensor] | None = None) -> None:
        """Set parts' boxes of buffers to their next values: in this rank's shards, or in copies of them."""
        local = {key.tensor: self._store.shards[key.tensor].tensor for key in values} if to is None else to
        whole: list[Update] = []
        for key, value in values.items():
            target = self._targets[key]
            if target.is_whole:
                whole.append(key)
            else:
                self._store.update(key.tensor, local[key.tensor], target.box, target.dims, value)
        if whole:
            shards = [local[key.tensor] for key in whole]
            torch._foreach_copy_(shards, [values[key].view(shard.shape) for key, shard in zip(whole, shards)])
