"""Ranks as processes, over torch.distributed's default group.

gloo matches messages by tag, and its sends wait for their receivers: so every receive of a step is posted before the
step begins, and the tag is the task's row.
"""

from __future__ import annotations

import atexit
import gc
from typing import Any
from weakref import ref

import torch
import torch.distributed as dist

from ..errors import RankError


class ProcessTransport:
    """Raises RankError where torch.distributed is not initialised, or a peer is gone."""

    def __init__(self) -> None:
        if not dist.is_available() or not dist.is_initialized():
            raise RankError(
                "torch.distributed is not initialised; start with torchrun and call "
                "torch.distributed.init_process_group('gloo') first, or pass transport="
            )
        atexit.unregister(_end_groups)
        atexit.register(_end_groups)
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        # Weak, so that destroy_process_group ends the groups then and there, not some time while Python shuts down.
        self._groups: dict[tuple[int, ...], Any] = {tuple(range(self.size)): ref(dist.group.WORLD)}
        self._incoming: dict[int, tuple[torch.Tensor, Any]] = {}
        self._outgoing: list[tuple[torch.Tensor, Any]] = []

    def prepare(self, groups: list[tuple[int, ...]]) -> None:
        for ranks in groups:
            if ranks not in self._groups:
                group = dist.new_group(list(ranks))
                self._groups[ranks] = ref(group) if self.rank in ranks else None

    def expect(self, row: int, shape: tuple[int, ...], dtype: torch.dtype, source: int) -> None:
        buffer = torch.empty(shape, dtype=dtype)
        self._incoming[row] = (buffer, dist.irecv(buffer, source, tag=row))

    def send(self, row: int, tensor: torch.Tensor, target: int) -> None:
        tensor = tensor.contiguous()
        self._outgoing.append((tensor, dist.isend(tensor, target, tag=row)))

    def receive(self, row: int) -> torch.Tensor:
        buffer, work = self._incoming.pop(row)
        self._wait(work)
        return buffer

    def all_reduce(self, row: int, tensor: torch.Tensor, ranks: tuple[int, ...]) -> torch.Tensor:
        total = tensor.clone(memory_format=torch.contiguous_format)
        self._wait(dist.all_reduce(total, group=self._groups[ranks](), async_op=True))
        return total

    def finish(self) -> None:
        for _, work in self._outgoing:
            self._wait(work)
        self._outgoing.clear()

    def exchange(self, value: Any) -> list[Any]:
        values: list[Any] = [None] * self.size
        try:
            dist.all_gather_object(values, value)
        except RuntimeError as error:
            raise _gone(self.rank, error) from None
        return values

    def fail(self, reason: str) -> None:
        pass  # the process ends with its error, and the peers' pending messages with it

    def _wait(self, work: Any) -> None:
        try:
            work.wait()
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
