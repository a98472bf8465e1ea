"""Ranks as processes over NCCL, which matches messages by order alone: all ranks follow one program, transfers that
stand next to one another in it go as one group, and everything goes by one stream."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
import torch.distributed as dist

from .processes import Groups, in_a_sentence
from .protocol import Pending


class OrderedTransport:
    """Raises RankError where torch.distributed is not initialised, or a peer is gone."""

    def __init__(self, place: torch.device) -> None:
        self.groups = Groups()
        self.rank, self.size, self.exchange = self.groups.rank, self.groups.size, self.groups.exchange
        self.place = place
        self._stream = torch.cuda.Stream(place) if place.type == "cuda" else None  # type: ignore[no-untyped-call]
        self._announced: dict[int, tuple[tuple[int, ...], torch.dtype, int]] = {}
        self._gathered: list[dist.P2POp] = []
        self._on_flush: list[list[Callable[[], None]]] = []  # where to leave the wait for each gathered receive
        self._underway: list[Callable[[], None]] = []

    def prepare(self, meetings: dict[tuple[int, ...], int]) -> None:
        self.groups.make(meetings, None)

    def expect(self, row: int, shape: tuple[int, ...], dtype: torch.dtype, source: int) -> None:
        self._announced[row] = (shape, dtype, source)

    def send(self, row: int, tensor: torch.Tensor, target: int) -> None:
        self._gathered.append(dist.P2POp(dist.isend, tensor.contiguous(), target))

    def receive(self, row: int) -> Pending:
        shape, dtype, source = self._announced.pop(row)
        buffer = torch.empty(shape, dtype=dtype, device=self.place)
        self._gathered.append(dist.P2POp(dist.irecv, buffer, source))
        waits: list[Callable[[], None]] = []
        self._on_flush.append(waits)

        def received() -> torch.Tensor:
            self.flush()
            waits[0]()
            return buffer

        return received

    def all_reduce(self, row: int, tensor: torch.Tensor, ranks: tuple[int, ...]) -> Pending:
        self.flush()
        tensor = tensor.contiguous()
        wait = self._issue([tensor], lambda: [dist.all_reduce(tensor, group=self.groups[ranks], async_op=True)])

        def summed() -> torch.Tensor:
            wait()
            return tensor

        return summed

    def flush(self) -> None:
        if not self._gathered:
            return
        ops, self._gathered = self._gathered, []
        wait = self._issue([op.tensor for op in ops], lambda: dist.batch_isend_irecv(ops))
        for waits in self._on_flush:
            waits.append(wait)
        self._on_flush.clear()
        self._underway.append(wait)

    def finish(self) -> None:
        self.flush()
        for wait in self._underway:
            wait()
        self._underway.clear()

    def fail(self, reason: str) -> None:
        pass  # the process ends with its error, and NCCL's watchdog with it

    def _issue(self, tensors: list[torch.Tensor], act: Callable[[], list[Any]]) -> Callable[[], None]:
        """Start something after all that was computed so far; return what makes later compute wait for it."""
        if self._stream is None:
            works = act()
            return cache(lambda: in_a_sentence(self.rank, lambda: [work.wait() for work in works]))  # twice would hang
        self._stream.wait_stream(torch.cuda.current_stream(self.place))
        with torch.cuda.stream(self._stream):
            in_a_sentence(self.rank, lambda: [work.wait() for work in act()])  # this stream waits, not the host
            done = self._stream.record_event()
        for tensor in tensors:
            tensor.record_stream(self._stream)
        return lambda: torch.cuda.current_stream(self.place).wait_event(done)
