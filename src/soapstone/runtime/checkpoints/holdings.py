"""What a rank keeps of a training, by name: weights and buffers, and the numbers that an optimizer has for each element
of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import prod
from typing import Any, NamedTuple

import torch

from ...errors import RankError
from ...parts import lengths
from ..store import Store
from .boxes import Chunk, chunks_of, runs


class Holding(NamedTuple):
    """A whole tensor's shape and type, and the boxes of it that a rank has."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    chunks: list[Chunk]


def held(store: Store, optimizer: torch.optim.Optimizer | None) -> dict[str, Holding]:
    """`model/NAME`, and `optimizer/WHAT/NAME` for what is as large as a parameter."""
    found: dict[str, Holding] = {}
    parameters = dict(store.parameters())
    for i, shard in store.shards.items():
        name, shape = shard.name, tuple(store.graph.tensors[i].shape)
        own = store.sharded[i].parameter if i in store.sharded else shard.tensor
        found[f"model/{name}"] = Holding(shape, own.dtype, list(_chunks(store, i, own)))
        for what, values in state_of(optimizer, parameters.get(name)).items():
            if values.shape == own.shape:
                found[f"optimizer/{what}/{name}"] = Holding(shape, values.dtype, list(_chunks(store, i, values)))
    return found


def state_of(optimizer: torch.optim.Optimizer | None, parameter: torch.Tensor | None) -> dict[str, torch.Tensor]:
    """The tensors that an optimizer keeps for a parameter. Raises RankError for one that is not elementwise."""
    state: Mapping[str, Any] = {} if optimizer is None or parameter is None else optimizer.state.get(parameter, {})
    found = {what: values for what, values in state.items() if isinstance(values, torch.Tensor)}
    for what, values in found.items():
        if parameter is not None and values.ndim and values.shape != parameter.shape:
            raise RankError(
                f"{type(optimizer).__name__} keeps {what!r} of shape {list(values.shape)} for a parameter of shape "
                f"{list(parameter.shape)}; under a strategy only elementwise optimizers are right, such as AdamW"
            )
    return found


def _chunks(store: Store, i: int, local: torch.Tensor) -> Iterator[Chunk]:
    """Boxes of a rank's shard of a tensor, or of its shares, in something of the same shape."""
    shard = store.shards[i]
    if i not in store.sharded:
        for box in store.read_boxes(i):
            yield from chunks_of(box, shard.dims, shard.window(local.detach(), box))
        return
    for portion in store.sharded[i].portions.values():
        values, before = local.detach()[portion.place : portion.place + portion.size], 0
        for box in portion.boxes:
            size = prod(lengths(box))
            first, last = max(portion.first - before, 0), min(portion.first + portion.size - before, size)
            for part, start in runs(box, first, last):
                at = before + first + start - portion.first
                window = values[at : at + prod(lengths(part))].view(lengths(part))
                yield from chunks_of(part, shard.dims, window)
            before += size
