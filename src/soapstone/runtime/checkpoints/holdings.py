"""What a rank keeps of a training, by name: weights and buffers, and what an optimizer has for each of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import prod
from typing import Any, NamedTuple

import torch
from torch import nn

from ...errors import RankError
from ...parts import Box, lengths
from ..store import Store
from ..weights import state_of
from .boxes import Chunk, chunks_of, remainder, runs

SINGLE = ("step", "mu_product", "eta", "mu")  # what torch's optimizers keep as one number, also of a parameter of one


class Holding(NamedTuple):
    """A whole tensor's shape and type, and the boxes of it that a rank has."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    chunks: list[Chunk]


def held(store: Store, optimizer: torch.optim.Optimizer | None) -> dict[str, Holding]:
    """`model/NAME`, and `optimizer/WHAT/NAME` for the tensors that an optimizer keeps for a parameter."""
    found: dict[str, Holding] = {}
    parameters = dict(store.parameters())
    for i, shard in store.shards.items():
        name, shape = shard.name, tuple(store.graph.tensors[i].shape)
        own = store.sharded[i].parameter if i in store.sharded else shard.tensor
        found[f"model/{name}"] = Holding(shape, own.dtype, list(_chunks(store, i, own)))
        for what, values in tensors_of(optimizer, parameters.get(name)).items():
            if what in SINGLE and not values.ndim:
                continue
            place = f"optimizer/{what}/{name}"
            if values.shape == own.shape:
                found[place] = Holding(shape, values.dtype, list(_chunks(store, i, values)))
            elif values.ndim:
                check_whole(store, i, f"{type(optimizer).__name__}'s {what!r}")
                found[place] = whole_holding(values)
    return found


def whole_holding(values: torch.Tensor) -> Holding:
    """All of a tensor."""
    shape = tuple(values.shape)
    return Holding(shape, values.dtype, [Chunk((0,) * len(shape), shape, values.detach())] if values.numel() else [])


def check_whole(store: Store, i: int, what: str) -> None:
    """Raise RankError unless this rank has all of a parameter, as what belongs to no single element of it needs."""
    tensor = store.graph.tensors[i]
    if i in store.sharded or prod(store.shards[i].tensor.shape) != prod(tensor.shape):
        raise RankError(
            f"{what} is of the whole parameter {tensor.name!r}, which is cut between ranks; use an elementwise "
            "optimizer such as AdamW, or a strategy that keeps parameters whole"
        )


def tensors_of(optimizer: torch.optim.Optimizer | None, parameter: torch.Tensor | None) -> dict[str, torch.Tensor]:
    """The tensors that an optimizer keeps for a parameter."""
    state: Mapping[str, Any] = {} if optimizer is None or parameter is None else optimizer.state.get(parameter, {})
    return {what: values for what, values in state.items() if isinstance(values, torch.Tensor)}


def unread(store: Store, model: nn.Module) -> dict[str, Holding]:
    """The elements that no rank's parts read, as the model has them: the same under any strategy."""
    known = {store.graph.tensors[i].name: i for i in store.pieces}
    found: dict[str, Holding] = {}
    for name, values in state_of(model).items():
        if name in store.graph.aliases or name in store.graph.counters or values.is_meta:
            continue
        if not values.numel():
            found[f"model/{name}"] = whole_holding(values)
            continue
        i = known.get(name)
        chunks = whole_holding(values).chunks if i is None else list(_unread_chunks(store, i, values.detach()))
        if chunks:
            found[f"model/{name}"] = Holding(tuple(values.shape), values.dtype, chunks)
    return found


def _unread_chunks(store: Store, i: int, values: torch.Tensor) -> Iterator[Chunk]:
    dims = store.graph.native.factoring(i)
    sizes = [n for axis in dims for n in axis]
    for box in remainder(sizes, [box for _, boxes in store.pieces[i] for box in boxes]):
        yield from chunks_of(box, dims, values.view(sizes)[tuple(slice(lo, hi) for lo, hi in box)])


def _chunks(store: Store, i: int, local: torch.Tensor) -> Iterator[Chunk]:
    """Boxes of a rank's shard of a tensor, or of its shares, in something of the same shape."""
    shard = store.shards[i]
    if i not in store.sharded:
        for box in store.read_boxes(i):
            yield from chunks_of(box, shard.dims, shard.window(local.detach(), box))
        return
    for portion in store.sharded[i].portions.values():
        values = local.detach()[portion.place : portion.place + portion.size]
        yield from _share_chunks(portion.boxes, portion.first, values, shard.dims)


def _share_chunks(boxes: Sequence[Box], begin: int, values: torch.Tensor, dims: list[list[int]]) -> Iterator[Chunk]:
    """A run of the flat elements of some boxes, from one of them on."""
    before = 0
    for box in boxes:
        size = prod(lengths(box))
        first, last = max(begin - before, 0), min(begin + len(values) - before, size)
        for part, start in runs(box, first, last):
            at = before + first + start - begin
            yield from chunks_of(part, dims, values[at : at + prod(lengths(part))].view(lengths(part)))
        before += size
