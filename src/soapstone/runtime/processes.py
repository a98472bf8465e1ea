"""Ranks as processes, over torch.distributed's default group.

gloo matches messages by tag, and its sends wait for their receivers: so every receive of a step is posted before the
step begins, and the tag is the task's row. NCCL matches by order alone: there a receive is posted where the program
has it, and all follow one program. gloo moves what lies on a GPU through pinned memory.
"""

from __future__ import annotations

import atexit
import gc
from collections.abc import Callable
from typing import Any
from weakref import ref

import torch
import torch.distributed as dist

from ..errors import RankError
from .transport import Pending

MOST_GROUPS = 16  # each has threads and connections of its own; rarer meetings go by messages


class ProcessTransport:
    """Raises RankError where torch.distributed is not initialised, or a peer is gone."""

    def __init__(self, place: torch.device | None = None) -> None:
        if not dist.is_available() or not dist.is_initialized():
            raise RankError(
                "torch.distributed is not initialised; start with torchrun and call "
                "torch.distributed.init_process_group('gloo') first, or pass transport="
            )
        atexit.unregister(_end_groups)
        atexit.register(_end_groups)
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self.place = torch.device("cpu") if place is None else place
        self._by_order = dist.get_backend() == "nccl"
        self._staged = self.place.type == "cuda" and not self._by_order
        # Weak, so that destroy_process_group ends the groups then and there, not some time while Python shuts down.
        self._groups: dict[tuple[int, ...], Any] = {tuple(range(self.size)): ref(dist.group.WORLD)}
        self._announced: dict[int, tuple[tuple[int, ...], torch.dtype, int]] = {}
        self._incoming: dict[int, tuple[torch.Tensor, Any]] = {}
        self._outgoing: list[tuple[torch.Tensor, Any]] = []

    def prepare(self, meetings: dict[tuple[int, ...], int]) -> None:
        heaviest = sorted(meetings, key=lambda ranks: (-meetings[ranks], ranks))
        wanted = [ranks for ranks in heaviest if len(ranks) > 1 and ranks not in self._groups]
        room = len(wanted) if self._by_order else MOST_GROUPS
        for ranks in wanted[:room]:
            group = dist.new_group(list(ranks))
            self._groups[ranks] = ref(group) if self.rank in ranks else None

    def expect(self, row: int, shape: tuple[int, ...], dtype: torch.dtype, source: int) -> None:
        self._announced[row] = (shape, dtype, source)
        if not self._by_order:
            self._post(row)

    def _post(self, row: int) -> None:
        shape, dtype, source = self._announced.pop(row)
        buffer = self._buffer(shape, dtype)
        self._incoming[row] = (buffer, dist.irecv(buffer, source, tag=row))

    def _buffer(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        return torch.empty(shape, dtype=dtype, device="cpu" if self._staged else self.place, pin_memory=self._staged)

    def _staged_copy(self, tensor: torch.Tensor) -> torch.Tensor:
        """A tensor where the backend can read it."""
        if not self._staged:
            return tensor.contiguous()
        return self._buffer(tuple(tensor.shape), tensor.dtype).copy_(tensor)

    def _back(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.to(self.place, non_blocking=True) if self._staged else tensor

    def send(self, row: int, tensor: torch.Tensor, target: int) -> None:
        tensor = self._staged_copy(tensor)
        self._outgoing.append((tensor, dist.isend(tensor, target, tag=row)))

    def receive(self, row: int) -> Pending:
        if self._by_order:
            self._post(row)
        buffer, work = self._incoming.pop(row)
        return lambda: self._back(self._wait(work, buffer))

    def all_reduce(self, row: int, tensor: torch.Tensor, ranks: tuple[int, ...]) -> Pending:
        tensor = self._staged_copy(tensor)
        if ranks not in self._groups:
            return self._reduce_by_messages(row, tensor, ranks)
        work = dist.all_reduce(tensor, group=self._groups[ranks](), async_op=True)
        return lambda: self._back(self._wait(work, tensor))

    def _reduce_by_messages(self, row: int, tensor: torch.Tensor, ranks: tuple[int, ...]) -> Pending:
        """Everyone to everyone, and everyone adds in the same order. The row's receive is its own, so tags cannot be
        mixed up with a transfer's."""
        others = [rank for rank in ranks if rank != self.rank]
        parts = {self.rank: tensor.clone()}
        works: list[Callable[[], Any]] = []
        for other in others:
            parts[other] = torch.empty_like(tensor)
            work: Any = dist.irecv(parts[other], other, tag=row)
            works.append(work.wait)
        self._outgoing += [(parts[self.rank], dist.isend(parts[self.rank], other, tag=row)) for other in others]

        def total() -> torch.Tensor:
            for work in works:
                self._tell(work)
            tensor.copy_(parts[ranks[0]])
            for rank in ranks[1:]:
                tensor.add_(parts[rank])
            return self._back(tensor)

        return total

    def finish(self) -> None:
        for tensor, work in self._outgoing:
            self._wait(work, tensor)
        self._outgoing.clear()

    def exchange(self, value: Any) -> list[Any]:
        values: list[Any] = [None] * self.size
        self._tell(lambda: dist.all_gather_object(values, value))
        return values

    def fail(self, reason: str) -> None:
        pass  # the process ends with its error, and the peers' pending messages with it

    def _wait(self, work: Any, tensor: torch.Tensor) -> torch.Tensor:
        self._tell(work.wait)
        return tensor

    def _tell(self, act: Callable[[], Any]) -> None:
        try:
            act()
        except RuntimeError as error:
            raise _gone(self.rank, error) from None


def _end_groups() -> None:
    """gloo's threads let go of their tensors a moment after a wait returns. End them while Python still stands: later,
    taking its lock would abort the process."""
    if dist.is_initialized():
        dist.destroy_process_group()
    gc.collect()


def _gone(rank: int, error: RuntimeError) -> RankError:
    reason = str(error).partition("] ")[2].split("[")[0].strip() or str(error).split("\n")[0]
    return RankError(f"rank {rank} lost another rank: {reason}; see that rank's own error")
