"""Which optimizers are right on a rank's shards: those that change each element by itself.

Others (Adafactor, LAMB, Muon) compute with norms, rows or products of whole parameters. They are right on a rank that
has all of the model's parameters whole, and refused at their first step on any other (`guards.py`).
"""

from __future__ import annotations

import copy
from collections import defaultdict
from typing import Any

import torch
from torch import nn, optim

_ELEMENTWISE = (
    optim.SGD, optim.Adam, optim.AdamW, optim.NAdam, optim.RAdam, optim.Adamax, optim.Adadelta, optim.Adagrad,
    optim.ASGD, optim.RMSprop, optim.Rprop,
)  # fmt: skip
_OWN = ("param_groups", "state", "step")  # a schedule wraps an optimizer's step, bound to that optimizer


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
    for row in gradients:
        for parameter, gradient in zip(parameters, row):
            parameter.grad = gradient.clone()
        trial.step()
    return [parameter.detach() for parameter in parameters]
