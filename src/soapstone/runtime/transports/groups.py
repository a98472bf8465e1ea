"""The process groups of torch.distributed that sets of ranks sum in, and what is said where a peer is gone."""

from __future__ import annotations

import atexit
import gc
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import combinations
from typing import Any
from weakref import ref

import torch
import torch.distributed as dist

from ...errors import LostRankError, RankError
from .encoding import length, received, sent
from .protocol import Pair
from .signs import shared_signs

SMALL = 512  # the most bytes of a value that is sent in one message; larger values take two
MOST_GROUPS = 16  # each has threads, connections or buffers of its own; rarer sets sum by messages


def check_initialised() -> None:
    if not dist.is_available() or not dist.is_initialized():
        raise RankError(
            "torch.distributed is not initialised; start with torchrun and call "
            "torch.distributed.init_process_group('gloo') first, or pass transport="
        )


class Groups:
    """One process group a set of ranks, at most MOST_GROUPS of them; every rank makes the same ones in the same
    order."""

    def __init__(self) -> None:
        check_initialised()
        atexit.unregister(_end_groups)
        atexit.register(_end_groups)
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        # Weak, so that destroy_process_group ends the groups then and there, not some time while Python shuts down.
        self._groups: dict[tuple[int, ...], Any] = {tuple(range(self.size)): ref(dist.group.WORLD)}

    def make(self, meetings: Mapping[tuple[int, ...], int]) -> list[tuple[int, ...]]:
        """Groups for the sets that sum the most bytes; the sets that are new, in the order in which they were made."""
        heaviest = sorted(meetings, key=lambda ranks: (-meetings[ranks], ranks))
        wanted = [ranks for ranks in heaviest if len(ranks) > 1 and ranks not in self._groups]
        made = wanted[: max(MOST_GROUPS - len(self._groups), 0)]
        for ranks in made:
            group = dist.new_group(list(ranks))
            self._groups[ranks] = ref(group) if self.rank in ranks else None
        return made

    def pairs_without(self, meetings: Mapping[tuple[int, ...], int]) -> set[Pair]:
        """The pairs of ranks that exchange messages because their set has no group."""
        return {pair for ranks in meetings if ranks not in self._groups for pair in combinations(sorted(ranks), 2)}

    def existing(self) -> list[Any]:
        """The groups that this rank is in and that have not been destroyed."""
        found = [group() for group in self._groups.values() if group is not None]
        return [group for group in found if group is not None]

    def __contains__(self, ranks: tuple[int, ...]) -> bool:
        return ranks in self._groups

    def __getitem__(self, ranks: tuple[int, ...]) -> Any:
        return self._groups[ranks]()


_shared: list[tuple[Any, Groups]] = []  # one at most, with the world that they are of


def shared_groups() -> Groups:
    """The same for all models of torch.distributed's present world, so that groups stay few."""
    check_initialised()
    if not _shared or _shared[0][0]() is not dist.group.WORLD:
        _shared[:] = [(ref(dist.group.WORLD), Groups())]
    return _shared[0][1]


def gathered(value: Any, group: Any = None) -> list[Any]:
    """Every rank's value, by rank. Raises RankError on all ranks if one cannot be sent or read."""
    own = sent(value)
    rows = _rows_of(own[:SMALL], SMALL, group)
    sizes = [length(row[:SMALL].tobytes()) for row in rows]
    if max(sizes) > SMALL:
        rows = _rows_of(own, max(sizes), group)
    return received([memoryview(row)[:size] for row, size in zip(rows, sizes)])


def _rows_of(data: bytearray, width: int, group: Any) -> Any:
    """A row of `width` bytes from every rank."""
    chosen: Any = group or dist.group.WORLD
    own, rows = torch.zeros(width, dtype=torch.uint8), torch.empty(dist.get_world_size(), width, dtype=torch.uint8)
    own[: len(data)] = torch.frombuffer(data, dtype=torch.uint8)
    with raise_if_peer_lost():
        chosen._allgather_base(rows.view(-1), own).wait()
    return rows.numpy()


_LATE = re.compile(r"[Tt]imed? ?out")
_LOST = re.compile(r"onnection|[Pp]eer|pipe|readv|writev|abort|NCCL", re.IGNORECASE)


@contextmanager
def raise_if_peer_lost() -> Iterator[None]:
    """Turn torch's error about a peer that is gone, or does not come, into a LostRankError that says which."""
    signs = shared_signs()
    signs.waiting = True
    try:
        yield
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as error:
        said = str(error)
        if not _LATE.search(said) and not _LOST.search(said):
            raise RankError(f"rank {signs.rank} cannot talk to another: {said.splitlines()[0]}") from None
        raise LostRankError(signs.why(timed_out=bool(_LATE.search(said)))) from None
    finally:
        signs.waiting = False


def timeout_of(place: torch.device) -> float:
    """Seconds that torch.distributed's default group waits for a message."""
    try:
        world: Any = dist.group.WORLD
        return float(world._get_backend(place).options._timeout.total_seconds())
    except (AttributeError, RuntimeError):
        return 600.0


def _end_groups() -> None:
    """gloo's threads let go of their tensors a moment after a wait returns. End them while Python still stands: later,
    taking its lock would abort the process."""
    if dist.is_initialized():
        dist.destroy_process_group()
    gc.collect()
