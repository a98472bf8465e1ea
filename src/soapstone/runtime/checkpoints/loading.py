"""Loading a checkpoint: every rank reads the boxes that it has, no matter which rank wrote them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

from ...errors import RankError
from ..agreement import agree
from ..execute import Executor
from ..takeover import tensor_names
from ..transports import Transport
from .choosing import chosen
from .dcp_loading import open_dcp
from .dcp_metadata import is_dcp
from .folders import set_aside
from .holdings import Holding, check_whole, held, unread, whole_holding
from .index import Index, restore_numbers
from .storage import Checkpoint
from .tensorfile import DTYPES


class Loaded(NamedTuple):
    """The step of the checkpoint that was loaded, and a sentence for each newer one that is damaged."""

    step: int
    damaged: tuple[str, ...]


def load(
    folder: Path,
    executor: Executor,
    transport: Transport,
    model: nn.Module,
    optimizer: torch.optim.Optimizer | None,
    *,
    convert: bool = False,
    last_good: bool = False,
) -> Loaded:
    """Load the newest checkpoint of a folder, of any strategy; with `last_good` the newest undamaged one, after
    renaming newer ones; or a folder that torch.distributed.checkpoint wrote. Raises RankError on all ranks, before
    anything changes, if the checkpoint is damaged or does not fit the model."""
    checkpoint: Checkpoint
    damaged: dict[str, str] = {}
    if transport.exchange(is_dcp(folder))[0]:
        checkpoint = open_dcp(folder, executor.store, transport, model, optimizer)
    else:
        checkpoint, damaged = chosen(folder, transport, last_good)
    with checkpoint:
        index = checkpoint.index
        agree(transport, lambda: _check(checkpoint, executor, model, optimizer, convert))
        agree(transport, lambda: executor.draws.restore(index.dropout) if index.dropout else None)
        agree(transport, lambda: _take(checkpoint, executor, model, optimizer))
    for name, counter in executor.store.counters.items():
        counter.fill_(index.counters[name])
    own = damaged if transport.rank == 0 else {}
    places = agree(transport, lambda: [set_aside(Path(path)) for path in own])
    aside = transport.exchange([str(place) for place in places])[0]
    said = tuple(f"{why}; it is {place} now" for place, why in zip(aside, damaged.values()))
    return Loaded(index.step, said)


def _check(
    checkpoint: Checkpoint,
    executor: Executor,
    model: nn.Module,
    optimizer: torch.optim.Optimizer | None,
    convert: bool,
) -> None:
    index, counters = checkpoint.index, executor.store.counters
    own = checkpoint.wanted(held(executor.store, None))
    for name, holding in own.items():
        checkpoint.check(name, holding, convert=convert)
    for name in (index.names.keys() - tensor_names(model)) | (counters.keys() - index.counters):
        raise RankError(f"the checkpoint {checkpoint.folder} is of another model: only one of them has {name!r}")
    for name, holding in _unread(checkpoint, executor, model):
        checkpoint.check(name, holding, convert=convert)
    if optimizer is not None:
        _check_optimizer(executor, optimizer, index)
        for name, what, shape in _states(executor, index):
            parameter = own[f"model/{name}"]
            dtype = _state_dtype(index, name, what, parameter.dtype)
            empty = torch.empty(shape, dtype=dtype, device="meta")
            wanted = parameter._replace(dtype=dtype) if shape == parameter.shape else whole_holding(empty)
            checkpoint.check(f"optimizer/{what}/{name}", wanted, convert=convert)


def _unread(checkpoint: Checkpoint, executor: Executor, model: nn.Module) -> Iterator[tuple[str, Holding]]:
    """The elements that no part of any rank reads. A checkpoint of a model on the meta device does not have them."""
    for name, holding in unread(executor.store, model).items():
        if name in checkpoint.index.tensors and checkpoint.index.tensors[name].is_complete:
            yield name, holding


def _take(
    checkpoint: Checkpoint, executor: Executor, model: nn.Module, optimizer: torch.optim.Optimizer | None
) -> None:
    if optimizer is not None:
        _prepare(executor, optimizer, checkpoint.index)
    for name, holding in checkpoint.wanted(held(executor.store, optimizer)).items():
        _fill(checkpoint, name, holding)
    for name, holding in _unread(checkpoint, executor, model):
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
    indices = {shard.name: i for i, shard in executor.store.shards.items()}
    for name, what, shape in _states(executor, index):
        if shape != tuple(executor.store.shards[indices[name]].shape):
            check_whole(executor.store, indices[name], f"{kind}'s {what!r}")


def _states(executor: Executor, index: Index) -> list[tuple[str, str, tuple[int, ...]]]:
    """The saved tensors of an optimizer for this rank's parameters: the parameter's name, the value's name, the
    shape."""
    assert index.optimizer is not None
    own = {name for name, _ in executor.store.parameters()}
    return [
        (name, what, index.tensors[place].shape)
        for name, kept in index.optimizer.state.items()
        for what in kept
        if name in own and (place := f"optimizer/{what}/{name}") in index.tensors
    ]


def _state_dtype(index: Index, name: str, what: str, dtype: torch.dtype) -> torch.dtype:
    """The type of an optimizer's tensor: the parameter's, if it was the parameter's when it was saved, or else the
    saved one."""
    saved = index.tensors[f"optimizer/{what}/{name}"].dtype
    return dtype if saved == index.tensors[f"model/{name}"].dtype else DTYPES[saved]


def _prepare(executor: Executor, optimizer: torch.optim.Optimizer, index: Index) -> None:
    """Give an optimizer the tensors that the checkpoint has for it, to be filled, and its numbers."""
    assert index.optimizer is not None
    parameters = dict(executor.store.parameters())
    shapes = {shard.name: tuple(shard.shape) for shard in executor.store.shards.values()}
    for parameter in parameters.values():  # an optimizer that has stepped begins anew
        optimizer.state.pop(parameter, None)
    for name, what, shape in _states(executor, index):
        parameter = parameters[name]
        sizes: Any = parameter.shape if shape == shapes[name] else shape
        dtype = _state_dtype(index, name, what, parameter.dtype)
        optimizer.state[parameter][what] = torch.zeros(sizes, dtype=dtype, device=parameter.device)
    fused = any(group.get("fused") or group.get("capturable") for group in optimizer.param_groups)
    for name, parameter in parameters.items():
        restore_numbers(
            optimizer.state[parameter], index.optimizer.numbers.get(name, {}), parameter.device if fused else None
        )
    for group, settings in zip(optimizer.param_groups, index.optimizer.groups):
        restore_numbers(group, settings)
