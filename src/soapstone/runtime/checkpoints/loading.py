"""Loading a training: every rank reads the boxes that it keeps, whoever wrote them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn

from ...errors import RankError
from ..agreement import agree
from ..execute import Executor
from ..transports import Transport
from .folders import latest
from .holdings import Holding, check_whole, held, unread
from .index import Index, restore_numbers
from .storage import Checkpoint


def load(
    folder: Path,
    executor: Executor,
    transport: Transport,
    model: nn.Module,
    optimizer: torch.optim.Optimizer | None,
) -> int:
    """Take the newest checkpoint, of any strategy; the step that it is of. Raises RankError on all ranks, before
    anything changes, where it does not fit the model or is damaged."""
    path = transport.exchange(agree(transport, lambda: _newest(folder) if transport.rank == 0 else None))[0]
    with agree(transport, lambda: Checkpoint(path)) as checkpoint:
        index = checkpoint.index

        def check() -> None:
            for rank in range(transport.rank, index.ranks, transport.size):
                checkpoint.verify(rank)
            for name, holding in held(executor.store, None).items():
                checkpoint.check(name, holding)
            for name in (index.names.keys() - model.state_dict().keys()) | (
                executor.store.counters.keys() - index.counters
            ):
                raise RankError(f"the checkpoint {path} is of another model: only one of them has {name!r}")
            if optimizer is not None:
                _check_optimizer(executor, optimizer, index)

        agree(transport, check)
        agree(transport, lambda: executor.draws.restore(index.dropout))
        agree(transport, lambda: _take(checkpoint, executor, model, optimizer))
    for name, counter in executor.store.counters.items():
        counter.fill_(index.counters[name])
    return index.step


def _newest(folder: Path) -> Path:
    path = latest(folder)
    if path is None:
        raise RankError(f"{folder} has no checkpoint; save one first, or name another folder")
    return path


def _take(
    checkpoint: Checkpoint, executor: Executor, model: nn.Module, optimizer: torch.optim.Optimizer | None
) -> None:
    if optimizer is not None:
        _prepare(executor, optimizer, checkpoint.index)
    for name, holding in held(executor.store, optimizer).items():
        _fill(checkpoint, name, holding)
    for name, holding in unread(executor.store, model).items():
        if name in checkpoint.index.tensors and checkpoint.index.tensors[name].is_complete:  # not of a meta model
            _fill(checkpoint, name, holding)


def _fill(checkpoint: Checkpoint, name: str, holding: Holding) -> None:
    for chunk, values in zip(holding.chunks, checkpoint.read(name, holding)):
        chunk.write(values)


def _check_optimizer(executor: Executor, optimizer: torch.optim.Optimizer, index: Index) -> None:
    saved, kind = index.optimizer, type(optimizer).__name__
    if saved is None:
        raise RankError("the checkpoint was saved without an optimizer; load it without one")
    if saved.kind != kind:
        raise RankError(f"the checkpoint was saved with {saved.kind}, this is {kind}; use that, or load without one")
    if len(saved.groups) != len(optimizer.param_groups):
        found, wanted = len(saved.groups), len(optimizer.param_groups)
        raise RankError(f"the optimizer had {found} parameter groups when it was saved, it has {wanted} now")
    for i, what, shape in _states(executor, index):
        if shape != executor.store.graph.tensors[i].shape:
            check_whole(executor.store, i, f"{kind}'s {what!r}")


def _states(executor: Executor, index: Index) -> list[tuple[int, str, tuple[int, ...]]]:
    """What was saved of an optimizer's tensors for the parameters that this rank has."""
    trained = {name for name, _ in executor.store.parameters()}
    indices = {shard.name: i for i, shard in executor.store.shards.items() if shard.name in trained}
    found: list[tuple[int, str, tuple[int, ...]]] = []
    for place, stored in index.tensors.items():
        of, _, rest = place.partition("/")
        what, _, name = rest.partition("/")
        if of == "optimizer" and name in indices:
            found.append((indices[name], what, stored.shape))
    return found


def _prepare(executor: Executor, optimizer: torch.optim.Optimizer, index: Index) -> None:
    """Give an optimizer the tensors that the checkpoint has for it, to be filled, and its numbers."""
    assert index.optimizer is not None
    parameters = dict(executor.store.parameters())
    for parameter in parameters.values():  # an optimizer that has stepped begins anew
        optimizer.state.pop(parameter, None)
    for i, what, shape in _states(executor, index):
        name = executor.store.graph.tensors[i].name
        parameter, stored = parameters[name], index.tensors[f"optimizer/{what}/{name}"]
        is_own = shape == tuple(executor.store.graph.tensors[i].shape)
        sizes: Any = parameter.shape if is_own else shape
        dtype = getattr(torch, stored.dtype)
        optimizer.state[parameter][what] = torch.zeros(sizes, dtype=dtype, device=parameter.device)
    fused = any(group.get("fused") or group.get("capturable") for group in optimizer.param_groups)
    for name, parameter in parameters.items():
        restore_numbers(
            optimizer.state[parameter], index.optimizer.numbers.get(name, {}), parameter.device if fused else None
        )
    for group, settings in zip(optimizer.param_groups, index.optimizer.groups):
        restore_numbers(group, settings)
