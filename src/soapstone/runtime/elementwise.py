"""Which optimizers are right on a rank's shards: those that change each element by itself.

Others (Adafactor, LAMB, Muon) compute with norms, rows or products of whole parameters. They are right on a rank that
has all of the model's parameters whole, and refused at their first step on any other.
"""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Iterator
from typing import Any
from weakref import WeakSet

import torch
from torch import nn, optim
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils.weak import WeakIdKeyDictionary

from ..errors import RankError
from .store import Store

_ELEMENTWISE = (
    optim.SGD, optim.Adam, optim.AdamW, optim.NAdam, optim.RAdam, optim.Adamax, optim.Adadelta, optim.Adagrad,
    optim.ASGD, optim.RMSprop, optim.Rprop,
)  # fmt: skip
_OWN = ("param_groups", "state", "step")  # a schedule wraps an optimizer's step, bound to that optimizer
_reasons = WeakIdKeyDictionary()  # by parameter: why only an elementwise optimizer is right for it
_accepted: WeakSet[optim.Optimizer] = WeakSet()
_registered: list[Any] = []


def watch_optimizers(store: Store) -> None:
    """Have the first step of an optimizer raise RankError where it is not right for these parameters."""
    reason = next(_not_whole(store), "")
    for _, parameter in store.parameters():
        if reason:
            _reasons[parameter] = reason
    if not _registered:
        _registered.append(register_optimizer_step_pre_hook(_check))


def _not_whole(store: Store) -> Iterator[str]:
    own = {shard.name: i for i, shard in store.shards.items()}
    for tensor in (tensor for tensor in store.graph.tensors if tensor.source == "parameter" and tensor.grad):
        i = own.get(tensor.name)
        if i is None:
            yield f"{tensor.name!r} is on another rank"
        elif i in store.sharded or tuple(store.shards[i].tensor.shape) != tuple(tensor.shape):
            yield f"{tensor.name!r} is cut between ranks"


def _check(optimizer: optim.Optimizer, arguments: Any, options: Any) -> None:
    if optimizer in _accepted:
        return
    found = [_reasons[p] for group in optimizer.param_groups for p in group["params"] if p in _reasons]
    if found and not is_elementwise(optimizer):
        raise RankError(
            f"{type(optimizer).__name__} computes with whole parameters, but {found[0]}; use an elementwise optimizer "
            "such as AdamW, or data parallelism without shards"
        )
    _accepted.add(optimizer)


def is_elementwise(optimizer: optim.Optimizer) -> bool:
    """Whether a parameter in two pieces becomes what it does in one, tried on a small one with the same settings."""
    if type(optimizer) in _ELEMENTWISE:
        return True
    generator = torch.Generator().manual_seed(0)
    first, *gradients = (torch.randn(6, 8, generator=generator) for _ in range(4))
    for group in optimizer.param_groups:
        try:
            whole = _stepped(optimizer, group, [first], [[gradient] for gradient in gradients])
            pieces = _stepped(optimizer, group, _pieces(first), [_pieces(gradient) for gradient in gradients])
        except Exception:
            return False  # it needs a closure, or parameters of some shape
        if not torch.allclose(whole[0].reshape(-1), torch.cat(pieces), rtol=1e-4, atol=1e-6):
            return False
    return True


def _pieces(tensor: torch.Tensor) -> list[torch.Tensor]:
    flat = tensor.reshape(-1)
    return [flat[:13].clone(), flat[13:].clone()]


def _stepped(
    optimizer: optim.Optimizer, like: dict[str, Any], values: list[torch.Tensor], gradients: list[list[torch.Tensor]]
) -> list[torch.Tensor]:
    """Parameters after some steps of an optimizer of the same class, in a group like one of its own."""
    parameters = [nn.Parameter(value.clone()) for value in values]
    trial = copy.copy(optimizer)
    own = {key: value for key, value in vars(optimizer).items() if key not in _OWN}
    trial.__dict__.update(copy.deepcopy(own))
    plain = {"fused": None, "capturable": False, "foreach": None}
    group = {key: plain.get(key, value) for key, value in like.items() if key != "params"}
    trial.param_groups, trial.state = [{**group, "params": parameters}], defaultdict(dict)
    _accepted.add(trial)
    for row in gradients:
        for parameter, gradient in zip(parameters, row):
            parameter.grad = gradient.clone()
        trial.step()
    return [parameter.detach() for parameter in parameters]
