"""Saving a checkpoint: by all ranks together, completely or not at all, while training goes on.

Every rank copies what it writes, and a thread writes the copy to a temporary folder, where a file gets its name once it
is complete. Rank 0's thread waits for all files and renames the folder. The threads synchronize through the file
system: the ranks' messages are in the order of the plan, which a thread must not disturb.
"""

from __future__ import annotations

import os
import re
import shutil
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from uuid import uuid4

import torch
from torch import nn
from torch.distributed.checkpoint.planner import SavePlan

from ...errors import RankError, SoapstoneError
from ...files import HALF
from ...parts import CAPTURING
from ...processes import Process
from ...strategy import Strategy
from ..agreement import agree
from ..execute import Executor
from ..takeover import tensor_names
from ..transports import Transport
from .folders import latest, name_of, prune, saved_in
from .holdings import Holding, held, unread
from .index import NAME, Index, Optimizer, places, plain_numbers
from .lease import Lease, TakenOverError, hold, launchers_of
from .optimizers import Collected, collected, state_on_rank
from .storage import file_of, picked, plan_from, plan_of, rows_of, sync, without_copies, write_tensors
from .tensorfile import pin_of

STRATEGY = "strategy.json"  # the strategy that the checkpoint was saved under
PATIENCE = 600.0  # seconds without a byte from any rank: a disk may take minutes to write all
LAST_PATIENCE = 60.0  # the same, once this rank's program is over or all ranks have written: a file server may be late
NO_PATIENCE = 5.0  # the same, once a rank has failed
HOW = ("params", "foreach", "fused", "capturable", "differentiable")  # settings of how a group computes, not of what
_SAFETENSORS = re.compile(r".*I/O error: | \(os error \d+\)$")  # around what went wrong
_LOOK = 0.02  # seconds between two looks


class Saver:
    """A rank's saves, one at a time."""

    def __init__(self, executor: Executor, transport: Transport, model: nn.Module) -> None:
        self._executor, self._transport, self._model = executor, transport, model
        self._buffers: list[torch.Tensor] = []  # for copies; kept for the next save
        self._writing: Future[None] | None = None
        self._own_plan, self._plans = SavePlan([]), list[SavePlan]()
        self._cancelled, self._failed, self._half = threading.Event(), threading.Event(), Path()
        self._written = threading.Event()  # the other ranks' files: one that stays away was removed
        self._launchers: tuple[Process, ...] | None = None  # of all ranks
        self._is_whole = self._is_lost = False  # the last checkpoint, and a file of it, on rank 0
        transport.at_failure(self._failed.set)

    def begin(
        self, folder: Path, optimizer: torch.optim.Optimizer | None, step: int, keep: int, *, copied: bool
    ) -> None:
        """Start to write the present values, or a copy of them if `copied`: then they may change before `finish`.
        Raises RankError on all ranks if the save before, or the start of this one, failed on one."""
        self.finish(before_another=True)
        rank, transport = self._transport.rank, self._transport
        launchers = self._launchers = launchers_of(transport) if self._launchers is None else self._launchers
        own = str(transport.exchange(uuid4().hex)[0])
        half = folder / f"{HALF}{name_of(step)}-{own}"  # no other run's
        self._half, self._is_whole, self._is_lost = half, False, False
        lease = agree(self._transport, lambda: _begin(folder, half, step, keep, launchers) if rank == 0 else None)
        held_here = agree(self._transport, lambda: self._described(optimizer))
        plans = self._plans_for(plan_of(held_here))
        values = picked(plans[rank], held_here)
        ready = self._copy(values) if copied else lambda: values
        act = self._write(half, own, ready)
        state = collected(transport.exchange(agree(transport, lambda: state_on_rank(self._executor.store, optimizer))))
        described = described_optimizer(optimizer, state)
        index = agree(transport, lambda: self._index(own, step, plans, held_here, described))
        if lease is not None:
            finish = self._finish(folder, half, index, keep, lease)
            act = _both(act, finish)
        self._start(act)

    def finish(self, *, before_another: bool = False) -> None:
        """Wait until the save in progress is complete. Raises RankError on all ranks if one could not write. If the
        folder was removed meanwhile and another save follows, there is no error: that save creates the folder again."""
        if self._writing is None:
            return
        writing, first = self._writing, self._transport.rank == 0
        self._writing = None
        try:
            agree(self._transport, lambda: None if first else _result(writing, self._half.parent))
            self._written.set()
            agree(self._transport, lambda: _result(writing, self._half.parent))  # rank 0's, which has all files now
        except SoapstoneError:
            self._cancelled.set()
            wait([writing])
            is_removed = self._transport.exchange(self._is_lost or not (self._is_whole or self._half.exists()))[0]
            if first:
                shutil.rmtree(self._half, ignore_errors=True)
            if not is_removed:
                raise
            if not before_another:
                folder = self._half.parent
                raise RankError(f"{folder} was removed while a checkpoint was written there; save another") from None

    def _has_all_files(self) -> bool:
        return all(path.exists() for path in self._files)

    @property
    def _files(self) -> list[Path]:
        return [self._half / file_of(rank) for rank in range(self._transport.size)]

    def _described(self, optimizer: torch.optim.Optimizer | None) -> dict[str, Holding]:
        """All that this rank could write. Rank 0 writes the elements that no rank reads."""
        found = held(self._executor.store, optimizer)
        for name, holding in unread(self._executor.store, self._model).items() if self._transport.rank == 0 else ():
            others = found[name].chunks if name in found else []
            found[name] = holding._replace(chunks=[*others, *holding.chunks])
        return found

    def _plans_for(self, own: SavePlan) -> list[SavePlan]:
        """What every rank writes. It is exchanged only if it has changed, since it is long."""
        if not all(self._transport.exchange(own == self._own_plan)):
            everyone = self._transport.exchange(rows_of(own))
            self._own_plan, self._plans = own, without_copies([plan_from(rows) for rows in everyone])
        return self._plans

    def _copy(self, values: list[torch.Tensor]) -> Callable[[], list[torch.Tensor]]:
        """Copies of tensors in the host's memory, and what waits until they are made."""
        if [(b.shape, b.dtype) for b in self._buffers] != [(v.shape, v.dtype) for v in values]:
            pinned = self._executor.place.type == "cuda"
            self._buffers = [torch.empty(v.shape, dtype=v.dtype, pin_memory=pinned) for v in values]
        for buffer, value in zip(self._buffers, values):
            buffer.copy_(value, non_blocking=True)
        made = torch.cuda.current_stream().record_event() if self._executor.place.type == "cuda" else None

        def ready() -> list[torch.Tensor]:
            if made is not None:
                with CAPTURING:
                    made.synchronize()
            return self._buffers

        return ready

    def _index(
        self, own: str, step: int, plans: list[SavePlan], held_here: dict[str, Holding], optimizer: Optimizer | None
    ) -> Index:
        executor, graph = self._executor, self._executor.store.graph
        tensors = places(plans, held_here)
        counters = {name: int(counter) for name, counter in executor.store.counters.items()}
        names = {name: graph.aliases.get(name, name) for name in tensor_names(self._model)}
        names = {name: own for name, own in names.items() if own in counters or f"model/{own}" in tensors}
        return Index(own, step, executor.draws.state(), counters, names, tensors, optimizer=optimizer)

    def _write(self, half: Path, own: str, ready: Callable[[], list[torch.Tensor]]) -> Callable[[], None]:
        return lambda: write_tensors(half, self._transport.rank, self._transport.size, own, ready())

    def _finish(self, folder: Path, half: Path, index: Index, keep: int, lease: Lease) -> Callable[[], None]:
        """Complete the checkpoint once all files are there."""
        strategy: Strategy = self._executor.plan.simulation.strategy

        def act() -> None:
            if not self._wait_for_files():
                self._is_lost = self._written.is_set()
                raise RankError("the files of other ranks are missing")
            strategy.save(half / STRATEGY)
            replace(index, files=tuple(map(pin_of, self._files))).write(half)
            for name in (half / STRATEGY, half / NAME, half):
                sync(name)
            lease.beat()
            os.rename(half, folder / name_of(index.step, saved_in(folder)))
            self._is_whole = True
            sync(folder)
            prune(folder, keep)

        return act

    def _wait_for_files(self) -> bool:
        """Wait for all files. False if another rank could not write, if one was removed, or if nothing has been written
        for too long."""
        seen, since = (0, False), time.monotonic()
        while not self._has_all_files():
            if (now := (_bytes_in(self._half), self._written.is_set())) != seen:
                seen, since = now, time.monotonic()
            elif time.monotonic() > since + self._patience:
                return False
            if self._cancelled.wait(_LOOK) or not self._half.exists():
                return False
        return True

    @property
    def _patience(self) -> float:
        if self._failed.is_set():
            return NO_PATIENCE
        may_be_written = threading.main_thread().is_alive() and not self._written.is_set()
        return PATIENCE if may_be_written else LAST_PATIENCE

    def _start(self, act: Callable[[], None]) -> None:
        """Run `act` in a thread of its own, which the program waits for before it ends."""
        self._cancelled.clear()
        self._written.clear()
        self._writing = Future()
        threading.Thread(target=_fulfil, args=(self._writing, act), name="soapstone save").start()


def _bytes_in(folder: Path) -> int:
    total = 0
    for path in folder.glob("*"):
        with suppress(FileNotFoundError):  # it has just been renamed
            total += path.stat().st_size
    return total


def _fulfil(writing: Future[None], act: Callable[[], None]) -> None:
    try:
        act()
    except BaseException as error:
        writing.set_exception(error)
    else:
        writing.set_result(None)


def _result(writing: Future[None], folder: Path) -> None:
    """Wait for a thread's work. Raises RankError if it failed."""
    try:
        writing.result()
    except TakenOverError:
        raise
    except Exception as error:
        what = getattr(error, "strerror", None) or _SAFETENSORS.sub("", str(error)) or type(error).__name__
        last = latest(folder)
        left = f"{last.name} is still there" if last is not None else "there is none yet"
        raise RankError(f"cannot write a checkpoint to {folder}: {what}; make room there ({left})") from None


def _both(first: Callable[[], None], second: Callable[[], None]) -> Callable[[], None]:
    def act() -> None:
        first()
        second()

    return act


def _begin(folder: Path, half: Path, step: int, keep: int, launchers: tuple[Process, ...]) -> Lease:
    if type(step) is not int or step < 0 or type(keep) is not int or keep < 1:
        raise RankError(f"step={step!r} and keep={keep!r} must be whole numbers, of at least 0 and 1")
    if (folder / NAME).exists():
        raise RankError(f"{folder} is a checkpoint itself; name the folder that it is in")
    try:
        lease = hold(folder, launchers)
        newest = max(saved_in(folder), default=None)
        if newest is not None and newest.step > step:
            raise RankError(
                f"{folder} has a checkpoint of step {newest.step}, and this is step {step}; go on from that one, or "
                "name another folder"
            )
        half.mkdir()
        return lease
    except OSError as error:
        raise RankError(f"cannot write {folder}: {error.strerror}; name another folder") from None


def described_optimizer(optimizer: torch.optim.Optimizer | None, state: Collected) -> Optimizer | None:
    if optimizer is None:
        return None
    groups = [{key: value for key, value in group.items() if key not in HOW} for group in optimizer.param_groups]
    return Optimizer(type(optimizer).__name__, state.names, state.numbers, tuple(map(plain_numbers, groups)))
