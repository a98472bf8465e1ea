"""Gradients and buffers for devices that hold them, but compute nothing with them for a batch of too few samples."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import product
from typing import NamedTuple

import torch

from ..graph import ITEM_SIZES
from ..parts import Box, common, lengths, overlap
from .buffers import updated_boxes
from .placement import Placement
from .sharded import Piece
from .store import Store
from .transports import Row, Transport


class _Spread(NamedTuple):
    """A box of a parameter that only some of its holders read, or of a buffer that only some update."""

    tensor: int
    box: Box
    devices: Sequence[int]


class _Meeting(NamedTuple):
    """Ranks that hold the same, of one type."""

    ranks: tuple[int, ...]
    dtype: str
    is_buffer: bool


class Spreading:
    """`store` is what is read for the batch, `known` what is read for the batch that was captured."""

    def __init__(self, placement: Placement, store: Store, known: Store, device: int, ranks: Sequence[int]) -> None:
        self._store, self._device = store, device
        self._rows: dict[_Meeting, list[_Spread]] = defaultdict(list)
        tensors = store.graph.tensors
        trained = [(i, pieces) for i, pieces in store.pieces.items() if tensors[i].grad and i not in store.sharded]
        updated = [(each.tensor, [(each.devices, [each.box])]) for each in updated_boxes(placement)]
        for is_buffer, every in ((False, trained), (True, updated)):
            for i, pieces in every:
                for holders, row in _missing(store, known, i, pieces):
                    together = tuple(ranks[device] for device in sorted(holders))
                    self._rows[_Meeting(together, tensors[i].dtype, is_buffer)].append(row)

    @property
    def bytes(self) -> dict[tuple[int, ...], int]:
        """What is summed, by the ranks among which."""
        found: dict[tuple[int, ...], int] = defaultdict(int)
        for meeting, rows in self._rows.items():
            found[meeting.ranks] += ITEM_SIZES[meeting.dtype] * sum(math.prod(lengths(row.box)) for row in rows)
        return found

    @torch.no_grad()
    def __call__(self, transport: Transport, *, sync: bool) -> None:
        """Give every holder the buffers that others have updated and, with `sync`, the gradients that they have
        summed."""
        for meeting, rows in self._rows.items():
            if transport.rank not in meeting.ranks or not (sync or meeting.is_buffer):
                continue
            flat = torch.cat([self._share(row, meeting.is_buffer) for row in rows])
            total = transport.all_reduce(Row.SPREAD, flat, meeting.ranks)()
            for row, values in zip(rows, torch.split(total, [math.prod(lengths(row.box)) for row in rows])):
                window = self._window(row, meeting.is_buffer)
                window.copy_(values.view(window.shape))
        transport.finish()

    def _window(self, row: _Spread, is_buffer: bool) -> torch.Tensor:
        """To be written to before the next one is made, which may give the gradient other memory."""
        shard = self._store.shards[row.tensor]
        return shard.window(shard.tensor.data if is_buffer else shard.own_gradient(), row.box)

    def _share(self, row: _Spread, is_buffer: bool) -> torch.Tensor:
        """What those devices have alike is the first one's to give. A gradient of earlier steps may be anywhere."""
        window = self._window(row, is_buffer)
        is_given = self._device == row.devices[0] or not (is_buffer or self._device in row.devices)
        return window.reshape(-1).clone() if is_given else torch.zeros_like(window).reshape(-1)


def _missing(store: Store, known: Store, i: int, pieces: Sequence[Piece]) -> Iterator[tuple[Sequence[int], _Spread]]:
    """Where devices hold a tensor but read nothing of it: all holders, and those that a piece names."""
    name = store.graph.tensors[i].name
    number = next(number for number in known.pieces if known.graph.tensors[number].name == name)
    is_buffer = store.graph.tensors[i].source == "buffer"  # whose readers have the newest values, or will get them
    readers = {device for devices, _ in store.pieces[i] for device in devices}
    for (devices, boxes), (holders, others) in product(pieces, known.pieces[number]):
        for box in (overlap(*both) for both in product(boxes, others)):
            if common(box, box) and set(holders).difference(readers if is_buffer else devices):
                yield holders, _Spread(i, box, devices)
