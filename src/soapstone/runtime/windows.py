"""Which box of a shard each part of a device reads: the shard, or a window of it.

A window is a leaf of its own, whose gradient is added to the shard's when it is complete. A slice taken inside of a
segment would get a gradient as large as the shard, zeros but for the slice, from every part.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import torch

from ..parts import Box, Part, local_shape, projected
from .keys import Gathered, Key, State, Window
from .placement import Placement, Task
from .segments import Segment
from .shard import Shard


class Windows:
    """All windows that a device's parts read."""

    def __init__(self, placement: Placement, device: int, shards: Mapping[int, Shard]) -> None:
        self._shards = shards
        self._boxes: dict[int, list[Box]] = {i: [list(shard.box)] for i, shard in shards.items()}
        self._of_parts: dict[tuple[int, int], dict[int, Window]] = {}  # by op and part, then by input
        for op, part in dict.fromkeys((task.op, task.part) for task in placement.tasks.get(device, ())):
            boxes = _read_boxes(placement, op, part, shards)
            self._of_parts[op, part] = {number: self._add(tensor, box) for number, tensor, box in boxes}
        changing = {operand.tensor for op in placement.graph.ops for operand in op.updates}
        self._lent = {i: torch.empty_like(shards[i].tensor) for i in sorted(changing & shards.keys())}
        self._wholes = [(Window(i, 0), shard) for i, shard in shards.items()]
        self._cuts = [
            (Window(i, number), box) for i, boxes in self._boxes.items() for number, box in enumerate(boxes[1:], 1)
        ]

    def _add(self, tensor: int, box: Box) -> Window:
        known = self._boxes[tensor]
        if box not in known:
            known.append(box)
        return Window(tensor, known.index(box))

    def window(self, op: int, part: int, number: int) -> Window | None:
        """Where a part finds an input that is a parameter or buffer; None where it reads nothing of it."""
        return self._of_parts[op, part].get(number)

    def takes(self, segment: Segment) -> list[Key]:
        """What a segment takes, each parameter and buffer by the windows that its parts read."""
        found: list[Key] = []
        read = dict.fromkeys(window for task in segment.tasks for window in self._read(task))
        for key in segment.takes:
            if isinstance(key, State):
                found += [window for window in read if window.tensor == key.tensor]
            elif not isinstance(key, Gathered):  # which brings nothing but the windows' values
                found.append(key)
        return found

    def _read(self, task: Task) -> Iterable[Window]:
        return () if task.deliver else self._of_parts[task.op, task.part].values()

    @property
    def cut(self) -> set[int]:
        """The tensors that some part reads by a window."""
        return {i for i, boxes in self._boxes.items() if len(boxes) > 1}

    def state(self) -> dict[Window, torch.Tensor]:
        """The shards and their windows, for one step. Of buffers that a step changes it gets copies, to work on."""
        found: dict[Window, torch.Tensor] = {}
        if self._lent:
            torch._foreach_copy_(list(self._lent.values()), [self._shards[i].tensor for i in self._lent])
        for key, shard in self._wholes:
            found[key] = self._lent.get(key.tensor, shard.tensor)
        for key, box in self._cuts:
            shard, whole = self._shards[key.tensor], found[Window(key.tensor, 0)]
            with shard.in_memory():
                found[key] = shard.window(whole.detach(), box).requires_grad_(shard.tensor.requires_grad)
        return found

    def changing(self, keys: Iterable[Key]) -> dict[int, torch.Tensor]:
        """Copies of the buffers among these that a step changes."""
        tensors = {key.tensor for key in keys if isinstance(key, Window)} & self._lent.keys()
        return {tensor: self._shards[tensor].tensor.clone() for tensor in tensors}

    def of_copies(self, keys: Iterable[Key], copies: Mapping[int, torch.Tensor]) -> dict[Key, torch.Tensor]:
        """Windows of copies of buffers, in memory of their own."""
        found: dict[Key, torch.Tensor] = {}
        for key in keys:
            if isinstance(key, Window) and key.tensor in copies:
                box = self._boxes[key.tensor][key.window]
                found[key] = self._shards[key.tensor].window(copies[key.tensor], box).clone()
        return found

    def gather(self, tensor: int, values: Mapping[Key, torch.Tensor]) -> None:
        """Add the gradients of a shard's windows to the shard's own."""
        shard = self._shards[tensor]
        for number, box in enumerate(self._boxes[tensor][1:], 1):
            leaf = values[Window(tensor, number)]
            if leaf.grad is not None:
                shard.window(shard.own_gradient(), box).add_(leaf.grad)
                leaf.grad = None

    def held(self, key: Window, tensor: torch.Tensor) -> tuple[torch.Tensor, Box, Sequence[Sequence[int]]]:
        """A window as it came, its box, and the dims that this is over."""
        box, dims = self._boxes[key.tensor][key.window], self._shards[key.tensor].dims
        return tensor.reshape(local_shape(box, dims)), box, dims


def _read_boxes(
    placement: Placement, op: int, part: int, shards: Mapping[int, Shard]
) -> Iterator[tuple[int, int, Box]]:
    """What a part reads of shards: (input, tensor, box over the shard's dims)."""
    reader = Part(placement.graph, op, placement.degrees[op], part)
    for number, operand in enumerate(reader.op.inputs):
        if operand.tensor in shards:
            dims = reader.op.values[operand.value].factoring
            box = projected(reader.input_box(number), dims, shards[operand.tensor].dims)
            if box is not None:
                yield number, operand.tensor, box
