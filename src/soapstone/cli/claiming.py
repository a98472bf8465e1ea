"""Takes a folder of checkpoints for a run. One run uses a folder at a time, and without --resume it goes on only from
its own checkpoints."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import SoapstoneError
from ..files import whole_number
from .common import say

if TYPE_CHECKING:
    from ..processes import Process
    from ..runtime import Transport
    from ..runtime.checkpoints.lease import Lease

_BITS = 2**63 - 1  # of a seed that a checkpoint keeps


@dataclass
class Claim:
    """How a run begins, the same on all ranks. `is_done` is set when the run is complete, so that nothing restarts
    it."""

    goes_on: bool  # from a checkpoint
    seed: int
    is_done: bool = False


def restarts() -> int:
    """How often torchrun has started the ranks anew."""
    return whole_number(os.environ.get("TORCHELASTIC_RESTART_COUNT", "")) or 0


@contextmanager
def claimed(folder: Path | None, resume: bool, seed: int | None, transport: Transport) -> Iterator[Claim]:
    """Inside the context the folder is this run's. Raises SoapstoneError on all ranks if another run uses it, if it has
    checkpoints of another run and `resume` is false, or if these were trained with another seed."""
    from ..runtime.agreement import agree
    from ..runtime.checkpoints.lease import launchers_of

    if folder is None:
        yield Claim(False, seed or 0)
        return
    launchers = launchers_of(transport)
    lease, claim = agree(
        transport, lambda: _claim(folder, resume, seed, launchers) if transport.rank == 0 else (None, Claim(False, 0))
    )
    claim = Claim(*transport.exchange((claim.goes_on, claim.seed))[0])
    try:
        yield claim
    finally:
        if lease is not None:
            lease.release(restartable=not claim.is_done)


def _claim(folder: Path, resume: bool, seed: int | None, launchers: tuple[Process, ...]) -> tuple[Lease | None, Claim]:
    from ..runtime.checkpoints import latest
    from ..runtime.checkpoints.lease import hold, owner_of

    owner, has_some = owner_of(folder, launchers), latest(folder) is not None
    is_own = restarts() > 0 and owner is not None and owner.is_restarted_by(launchers)
    if has_some and not resume and not is_own:
        raise SoapstoneError(f"{folder} has checkpoints already; add --resume to go on, or name another folder")
    saved = _seed_of(folder)
    if saved is not None and seed is not None and seed & _BITS != saved:
        raise SoapstoneError(
            f"{folder} was trained with --seed {saved}, which determines its data and dropout; leave out --seed {seed} "
            "to go on from it, or name another folder"
        )
    lease = hold(folder, launchers)
    if resume and not has_some:
        say(f"{folder} has no checkpoint: this is a new run.")
    return lease, Claim(has_some, seed if seed is not None else saved or 0)


def _seed_of(folder: Path) -> int | None:
    """The seed in the newest index that can be read; None if there is no such index, or no seed in it."""
    from ..runtime.checkpoints.folders import saved_in
    from ..runtime.checkpoints.index import Index

    for saved in reversed(saved_in(folder)):
        try:
            found = Index.read(saved.path).dropout.get("seed")
        except SoapstoneError:
            continue
        return found if type(found) is int else None
    return None
