"""Choosing a checkpoint of a folder: the newest, or if the user asks for it, the newest that is not damaged."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from ...errors import RankError
from ..agreement import agree
from ..transports import Transport
from .folders import candidates
from .index import DamagedError
from .storage import Checkpoint

T = TypeVar("T")
Examined = tuple[Checkpoint | None, str]  # a checkpoint, or None and how it is damaged
Chosen = tuple[Checkpoint, dict[str, str]]  # a checkpoint, and what is wrong with newer ones, by path


def chosen(folder: Path, transport: Transport, last_good: bool) -> Chosen:
    """The same checkpoint on all ranks, after they have checked all of its files. Raises RankError on all ranks if
    there is none, or if the newest is damaged and `last_good` is false."""
    paths = transport.exchange(agree(transport, lambda: _listed(folder) if transport.rank == 0 else []))[0]
    return _first(folder, paths, lambda path: _examined(path, transport), last_good)


def chosen_alone(folder: Path, last_good: bool) -> Chosen:
    """Like `chosen`, for a single process."""

    def examined(path: Path) -> Examined:
        found, problem = _tried(lambda: Checkpoint(path))
        if found is not None:
            _, problem = _tried(lambda: _verify(found, range(found.index.ranks)))
        return (None if problem else found), problem

    return _first(folder, _listed(folder), examined, last_good)


def _listed(folder: Path) -> list[str]:
    found = candidates(folder)
    if not found:
        raise RankError(f"{folder} has no checkpoint; save one first, or name another folder")
    return [str(path) for path in found]


def _first(folder: Path, paths: list[str], examine: Callable[[Path], Examined], last_good: bool) -> Chosen:
    damaged: dict[str, str] = {}
    for path in paths:
        found, problem = examine(Path(path))
        if found is not None:
            return found, damaged
        if not last_good:
            raise RankError(f"{problem}; --last-good (last_good=True) takes the newest undamaged checkpoint instead")
        damaged[path] = problem
    raise RankError(f"{folder} has no undamaged checkpoint: {damaged[paths[0]]}")


def _examined(path: Path, transport: Transport) -> Examined:
    """The checkpoint, unless some rank finds it damaged. Each rank checks some of its files."""
    found, problem = _all_tried(transport, lambda: Checkpoint(path))
    if found is None or problem:
        return None, problem
    if len({*transport.exchange(found.index.own)}) > 1:
        raise RankError(f"ranks see different checkpoints at {path}; name a folder that all of them share")
    own = range(transport.rank, found.index.ranks, transport.size)
    _, problem = _all_tried(transport, lambda: _verify(found, own))
    return (None if problem else found), problem


def _verify(checkpoint: Checkpoint, ranks: range) -> None:
    with checkpoint:  # files are opened again when tensors are read
        for rank in ranks:
            checkpoint.verify(rank)


def _tried(act: Callable[[], T]) -> tuple[T | None, str]:
    """What `act` returns and "", or None and the message of its DamagedError."""
    try:
        return act(), ""
    except DamagedError as error:
        return None, str(error)


def _all_tried(transport: Transport, act: Callable[[], T]) -> tuple[T | None, str]:
    """Like `_tried`, on every rank; the message is that of the first rank that finds damage."""
    found, problem = agree(transport, lambda: _tried(act))
    said = transport.exchange(problem)
    named = [text if transport.size == 1 else f"rank {rank}: {text}" for rank, text in enumerate(said) if text]
    return found, next(iter(named), "")
