"""The optimizers that a training may name, as torch has them."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import nn

from ..errors import SoapstoneError, meant


def torch_optimizer(name: str, parameters: Iterable[nn.Parameter], lr: float) -> torch.optim.Optimizer:
    """Raises SoapstoneError for a name that is not known."""
    makers: dict[str, Callable[[list[nn.Parameter]], torch.optim.Optimizer]] = {
        "sgd": lambda p: torch.optim.SGD(p, lr=lr),
        "momentum": lambda p: torch.optim.SGD(p, lr=lr, momentum=0.9),
        "adam": lambda p: torch.optim.Adam(p, lr=lr),
        "adamw": lambda p: torch.optim.AdamW(p, lr=lr),
    }
    if name not in makers:
        remedy = meant(name, makers, f"use {', '.join(makers)}")
        raise SoapstoneError(f"optimizer {name!r} is not known; {remedy}")
    return makers[name](list(parameters))
