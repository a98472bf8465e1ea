"""Saving and loading a training: all ranks together, whole or not at all."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import torch

from ...errors import RankError
from ...files import HALF
from ...strategy import Strategy
from ..agreement import agree
from ..execute import Executor
from ..transports import Transport
from .holdings import held, state_of
from .storage import INDEX, Checkpoint, plan_of, without_copies, write_index, write_tensors

_NAME = "step-"
STRATEGY = "strategy.json"  # that it was saved under


def latest(folder: Path) -> Path | None:
    """The newest whole checkpoint of a folder."""
    found = sorted(path.parent for path in folder.glob(f"{_NAME}*/{INDEX}"))
    return found[-1] if found else None


def save(
    folder: Path,
    executor: Executor,
    transport: Transport,
    optimizer: torch.optim.Optimizer | None,
    step: int,
    keep: int,
) -> None:
    """Every rank writes its part of a new checkpoint, which appears once all is on disk; only the newest `keep` stay.
    Raises RankError on all ranks where one cannot write."""
    name = f"{_NAME}{step:09}"
    half, whole = folder / f"{HALF}{name}", folder / name
    held_here = held(executor.store, optimizer)
    shared = transport.exchange((plan_of(held_here), _numbers(executor, optimizer)))
    plans = without_copies([plan for plan, _ in shared])
    rank = transport.rank
    agree(transport, lambda: _begin(half) if rank == 0 else None)
    try:
        agree(transport, lambda: _on_disk(lambda: write_tensors(half, rank, plans[rank], held_here)))
        facts = {"step": step, "dropout": executor.draws.state(), "counters": _counters(executor)}
        facts["optimizer"] = {name: values for _, (rows, _) in shared for name, values in rows.items()}
        facts["groups"] = shared[0][1][1]
        strategy = executor.plan.simulation.strategy
        agree(transport, lambda: _finish(half, whole, plans, facts, strategy) if rank == 0 else None)
    except RankError:
        if rank == 0:
            shutil.rmtree(half, ignore_errors=True)
        raise
    if rank == 0:
        _prune(folder, keep)


def load(folder: Path, executor: Executor, transport: Transport, optimizer: torch.optim.Optimizer | None) -> int:
    """Take the newest checkpoint, of any strategy; the step that it is of. Raises RankError on all ranks, before
    anything changes, where it does not fit the model."""
    found: list[Checkpoint] = []

    def check() -> None:
        path = latest(folder)
        if path is None:
            raise RankError(f"{folder} has no checkpoint; save one first, or name another folder")
        found.append(Checkpoint(path))
        for name, holding in held(executor.store, None).items():
            found[0].check(name, holding)

    agree(transport, check)
    (checkpoint,) = found
    facts = checkpoint.facts
    if optimizer is not None:
        _prepare(executor, optimizer, checkpoint)
    wanted = held(executor.store, optimizer)
    agree(transport, lambda: checkpoint.read_all(wanted))
    executor.draws.restore(facts["dropout"])
    for name, counter in executor.store.counters.items():
        counter.fill_(facts["counters"][name])
    return int(facts["step"])


def _numbers(executor: Executor, optimizer: torch.optim.Optimizer | None) -> tuple[dict[str, Any], list[Any]]:
    """What an optimizer keeps besides: single numbers by parameter, and the settings of its groups."""
    rows = {
        name: {what: float(value) for what, value in state_of(optimizer, parameter).items() if not value.ndim}
        for name, parameter in executor.store.parameters()
    }
    groups = [] if optimizer is None else optimizer.param_groups
    plain = (bool, int, float, str, type(None))
    settings = [{k: v for k, v in group.items() if isinstance(v, plain)} for group in groups]
    return rows, settings


def _prepare(executor: Executor, optimizer: torch.optim.Optimizer, checkpoint: Checkpoint) -> None:
    """Give an optimizer that has not stepped yet the tensors that the checkpoint has for it, and its numbers."""
    whats = sorted({name.split("/")[1] for name in checkpoint.names if name.startswith("optimizer/")})
    for name, parameter in executor.store.parameters():
        numbers = checkpoint.facts["optimizer"].get(name, {})
        state = optimizer.state[parameter]
        for what in whats:
            if f"optimizer/{what}/{name}" in checkpoint.names and what not in state:
                state[what] = torch.zeros_like(parameter.detach())
        for what, value in numbers.items():
            kept = state.get(what)
            state[what] = torch.full_like(kept, value) if isinstance(kept, torch.Tensor) else torch.tensor(value)
    for group, settings in zip(optimizer.param_groups, checkpoint.facts["groups"]):
        group.update(settings)


def _counters(executor: Executor) -> dict[str, int]:
    return {name: int(counter) for name, counter in executor.store.counters.items()}


def _begin(half: Path) -> None:
    def make() -> None:
        shutil.rmtree(half, ignore_errors=True)
        half.mkdir(parents=True)

    _on_disk(make)


def _finish(half: Path, whole: Path, plans: Any, facts: dict[str, Any], strategy: Strategy) -> None:
    def act() -> None:
        strategy.save(half / STRATEGY)
        write_index(half, plans, facts)
        if whole.exists():
            shutil.rmtree(whole)
        os.replace(half, whole)
        handle = os.open(whole.parent, os.O_RDONLY)
        os.fsync(handle)
        os.close(handle)

    _on_disk(act)


def _on_disk(act: Any) -> None:
    try:
        act()
    except OSError as error:
        what = error.strerror or str(error)
        raise RankError(f"cannot write the checkpoint: {what}; the last whole one is still there") from None


def _prune(folder: Path, keep: int) -> None:
    for path in sorted(path.parent for path in folder.glob(f"{_NAME}*/{INDEX}"))[:-keep]:
        shutil.rmtree(path, ignore_errors=True)
