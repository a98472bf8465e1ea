"""Buffers that only some of their devices update.

Under local batch norm each part has its own statistics, and the running statistics are those of the part with the first
samples. No step reads them, so devices with other parts keep old values during training. Before an evaluation, a state
dict or a checkpoint reads them, every device takes the values of the device that updates them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from .. import _core
from ..parts import Box, Part, lengths
from .keys import Update
from .placement import Placement, Task
from .store import Store
from .transports import Transport


@dataclass(frozen=True, slots=True)
class Source:
    """A box of a buffer, and the devices that update it, which all have the same values."""

    tensor: int
    box: Box
    devices: tuple[int, ...]


class LaggingBuffers:
    """The boxes of buffers that some devices have but do not update."""

    def __init__(self, placement: Placement, device: int, store: Store) -> None:
        self._device, self._store = device, store
        self._sources = _sources(placement)
        self._changed = False

    def change(self) -> None:
        """Note that a step has changed buffers."""
        self._changed = True

    @torch.no_grad()
    def catch_up(self, transport: Transport) -> None:
        """Give every device the newest values; every rank calls this."""
        if not self._changed or not self._sources:
            return
        self._changed = False
        own = [(n, self._values(each)) for n, each in enumerate(self._sources) if each.devices[0] == self._device]
        for n, values in (row for rows in transport.exchange(own) for row in rows):
            if self._device not in self._sources[n].devices:
                self._take(self._sources[n], values)

    def _values(self, source: Source) -> torch.Tensor:
        shard = self._store.shards[source.tensor]
        return shard.window(shard.tensor, source.box).to("cpu", copy=True)

    def _take(self, source: Source, values: torch.Tensor) -> None:
        shard = self._store.shards.get(source.tensor)
        if shard is None:
            return
        both = [(max(a, c), min(b, d)) for (a, b), (c, d) in zip(source.box, shard.box)]
        if all(lo < hi for lo, hi in both):
            inside = tuple(slice(lo - start, hi - start) for (lo, hi), (start, _) in zip(both, source.box))
            shard.window(shard.tensor, both).copy_(values.reshape(lengths(source.box))[inside])


def _sources(placement: Placement) -> list[Source]:
    """The updated boxes, each once, except those of buffers that are updated on every device that has them."""
    return [row for row in updated_boxes(placement) if placement.holders[row.tensor] - set(row.devices)]


def updated_boxes(placement: Placement) -> list[Source]:
    """Each once."""
    found: dict[tuple[int, tuple[tuple[int, int], ...]], set[int]] = {}
    for device, tasks in placement.tasks.items():
        for task in tasks:
            for tensor, box in _updated(placement, task, device):
                found.setdefault((tensor, box), set()).add(device)
    return [Source(tensor, list(box), tuple(sorted(devices))) for (tensor, box), devices in sorted(found.items())]


def _updated(placement: Placement, task: Task, device: int) -> Iterator[tuple[int, tuple[tuple[int, int], ...]]]:
    """The buffers that a task updates, and the boxes of each."""
    updates = {key.tensor for key in placement.makes(task, device) if isinstance(key, Update)}
    if not updates & placement.holders.keys():  # a constant is not updated
        return
    op = placement.graph.ops[task.op]
    for tensor, box in Part(placement.graph, task.op, placement.degrees[task.op], task.part).updated().items():
        value = next(operand.value for operand in op.inputs if operand.tensor == tensor)
        dims = [list(axis) for axis in op.values[value].factoring]
        for piece in _core.project(list(box), dims, placement.dims[tensor]) if tensor in updates else ():
            yield tensor, tuple((lo, hi) for lo, hi in piece)
