"""The optimizers that a training may name, as torch has them."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import nn

from ..errors import SoapstoneError, meant

Maker = Callable[[list[nn.Parameter], float], torch.optim.Optimizer]
MAKERS: dict[str, Maker] = {
    "sgd": lambda p, lr: torch.optim.SGD(p, lr=lr),
    "momentum": lambda p, lr: torch.optim.SGD(p, lr=lr, momentum=0.9),
    "adam": lambda p, lr: torch.optim.Adam(p, lr=lr),
    "adamw": lambda p, lr: torch.optim.AdamW(p, lr=lr),
}


def torch_optimizer(name: str, parameters: Iterable[nn.Parameter], lr: float) -> torch.optim.Optimizer:
    """Raises SoapstoneError for a name that is not known."""
    check_optimizer(name)
    return MAKERS[name](list(parameters), lr)


def check_optimizer(name: str) -> None:
    """Raise SoapstoneError for a name that is not known."""
    if name not in MAKERS:
        remedy = meant(name, MAKERS, f"use {', '.join(MAKERS)}")
        raise SoapstoneError(f"optimizer {name!r} is not known; {remedy}")
