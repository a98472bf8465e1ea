"""Ranks as processes, over torch.distributed's default group.

gloo matches messages by tag, and its sends wait for their receivers: so receives are posted before their turn, and the
tag is the task's row. It moves what lies on a GPU through pinned memory. NCCL, in `ordered.py`, matches by order alone.
"""

from __future__ import annotations

import atexit
import gc
from collections.abc import Callable
from typing import Any
from weakref import ref

import torch
import torch.distributed as dist

from ...errors import RankError
from .protocol import Pending

MOST_GROUPS = 16  # each has threads and connections of its own; rarer meetings go by messages


def check_initialised() -> None:
    if not dist.is_available() or not dist.is_initialized():
        raise RankError(
            "torch.distributed is not initialised; start with torchrun and call "
            "torch.distributed.init_process_group('gloo') first, or pass transport="
        )


class Groups:
    """The process groups of sets of ranks."""

    def __init__(self) -> None:
        check_initialised()
        atexit.unregister(_end_groups)
        atexit.register(_end_groups)
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        # Weak, so that destroy_process_group ends the groups then and there, not some time while Python shuts down.
        self._groups: dict[tuple[int, ...], Any] = {tuple(range(self.size)): ref(dist.group.WORLD)}

    def make(self, meetings: dict[tuple[int, ...], int], most: int | None) -> None:
        """Groups for the sets that sum the most bytes; every rank makes the same ones."""
        heaviest = sorted(meetings, key=lambda ranks: (-meetings[ranks], ranks))
        wanted = [ranks for ranks in heaviest if len(ranks) > 1 and ranks not in self._groups]
        for ranks in wanted[: None if most is None else max(most - len(self._groups), 0)]:
            group = dist.new_group(list(ranks))
            self._groups[ranks] = ref(group) if self.rank in ranks else None

    def __contains__(self, ranks: tuple[int, ...]) -> bool:
        return ranks in self._groups

    def __getitem__(self, ranks: tuple[int, ...]) -> Any:
        return self._groups[ranks]()

    def exchange(self, value: Any) -> list[Any]:
        values: list[Any] = [None] * self.size
        in_a_sentence(self.rank, lambda: dist.all_gather_object(values, value))
        return values


class ProcessTransport:
    """Over gloo. Raises RankError where torch.distributed is not initialised, or a peer is gone."""

    def __init__(self, place: torch.device | None = None) -> None:
        self.groups = Groups()
        self.rank, self.size, self.exchange = self.groups.rank, self.groups.size, self.groups.exchange
        self.place = torch.device("cpu") if place is None else place
        self._staged = self.place.type == "cuda"
        self._incoming: dict[int, tuple[torch.Tensor, Any]] = {}
        self._outgoing: list[tuple[torch.Tensor, Any]] = []

    def prepare(self, meetings: dict[tuple[int, ...], int]) -> None:
        self.groups.make(meetings, MOST_GROUPS)

    def expect(self, row: int, shape: tuple[int, ...], dtype: torch.dtype, source: int) -> None:
        buffer = self._buffer(shape, dtype)
        self._incoming[row] = (buffer, dist.irecv(buffer, source, tag=row))

    def send(self, row: int, tensor: torch.Tensor, target: int) -> None:
        tensor = self._readable(tensor)
        self._outgoing.append((tensor, dist.isend(tensor, target, tag=row)))

    def receive(self, row: int) -> Pending:
        buffer, work = self._incoming.pop(row)
        return lambda: self._back(self._wait(work, buffer))

    def all_reduce(self, row: int, tensor: torch.Tensor, ranks: tuple[int, ...]) -> Pending:
        tensor = self._readable(tensor)
        if ranks not in self.groups:
            return self._reduce_by_messages(row, tensor, ranks)
        work = self.groups[ranks].allreduce([tensor])  # what dist.all_reduce comes to, at a fifth of its price
        return lambda: self._back(self._wait(work, tensor))

    def _reduce_by_messages(self, row: int, tensor: torch.Tensor, ranks: tuple[int, ...]) -> Pending:
        """Everyone to everyone, and everyone adds in the same order."""
        others = [rank for rank in ranks if rank != self.rank]
        parts = {rank: tensor.clone() if rank == self.rank else torch.empty_like(tensor) for rank in ranks}
        works = {other: dist.irecv(parts[other], other, tag=row) for other in others}
        self._outgoing += [(parts[self.rank], dist.isend(parts[self.rank], other, tag=row)) for other in others]

        def total() -> torch.Tensor:
            for other, work in works.items():
                self._wait(work, parts[other])
            tensor.copy_(parts[ranks[0]])
            for rank in ranks[1:]:
                tensor.add_(parts[rank])
            return self._back(tensor)

        return total

    def flush(self) -> None:
        pass

    def finish(self) -> None:
        for tensor, work in self._outgoing:
            self._wait(work, tensor)
        self._outgoing.clear()

    def fail(self, reason: str) -> None:
        pass  # the process ends with its error, and the peers' pending messages with it

    def _buffer(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        return torch.empty(shape, dtype=dtype, pin_memory=self._staged)

    def _readable(self, tensor: torch.Tensor) -> torch.Tensor:
        """A tensor where gloo can read it."""
        if not self._staged:
            return tensor.contiguous()
        return self._buffer(tuple(tensor.shape), tensor.dtype).copy_(tensor)

    def _back(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.to(self.place) if self._staged else tensor

    def _wait(self, work: Any, tensor: torch.Tensor) -> torch.Tensor:
        in_a_sentence(self.rank, work.wait)
        return tensor


def in_a_sentence(rank: int, act: Callable[[], Any]) -> None:
    """Raise RankError where a peer is gone."""
    try:
        act()
    except RuntimeError as error:
        reason = str(error).partition("] ")[2].split("[")[0].strip() or str(error).split("\n")[0]
        raise RankError(f"rank {rank} lost another rank: {reason}; see that rank's own error") from None


def _end_groups() -> None:
    """gloo's threads let go of their tensors a moment after a wait returns. End them while Python still stands: later,
    taking its lock would abort the process."""
    if dist.is_initialized():
        dist.destroy_process_group()
    gc.collect()
