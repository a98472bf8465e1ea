"""The optimizers that a training may name, as torch has them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

import torch
from torch import nn

from ..errors import SoapstoneError, meant

MAKERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "sgd": torch.optim.SGD,
    "momentum": partial(torch.optim.SGD, momentum=0.9),
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
}


def torch_optimizer(name: str, parameters: Iterable[nn.Parameter], lr: float) -> torch.optim.Optimizer:
    """On a GPU in one pass, as costs have it: torch's own choice makes several. Raises SoapstoneError for a name that
    is not known."""
    check_optimizer(name)
    given = list(parameters)
    return MAKERS[name](given, lr=lr, fused=all(parameter.is_cuda for parameter in given) or None)


def check_optimizer(name: str) -> None:
    """Raise SoapstoneError for a name that is not known."""
    if name not in MAKERS:
        remedy = meant(name, MAKERS, f"use {', '.join(MAKERS)}")
        raise SoapstoneError(f"optimizer {name!r} is not known; {remedy}")
