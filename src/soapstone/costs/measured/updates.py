"""An optimizer's step, timed on parameters of two sizes: what it takes once, and for each element."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch

from ...errors import SoapstoneError, meant
from .clocks import Clock
from .rounds import Pace, Timed, time_all

COUNT = 16  # tensors
SMALL, LARGE = 16, 2**21  # elements of each; the large ones together are more than most caches hold

_OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "sgd": torch.optim.SGD,
    "momentum": partial(torch.optim.SGD, momentum=0.9),
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
}


def measured_update(optimizer: str, pace: Pace, clock: Clock) -> tuple[int, float]:
    """Raises SoapstoneError for an unknown optimizer."""
    if optimizer not in _OPTIMIZERS:
        remedy = meant(optimizer, _OPTIMIZERS, f"there are {', '.join(_OPTIMIZERS)}")
        raise SoapstoneError(f"no costs for optimizer {optimizer!r}; {remedy}")
    small, large = (Timed(_step(optimizer, size)) for size in (SMALL, LARGE))
    time_all([small, large], pace, clock)
    slope = (large.device - small.device) / (COUNT * (LARGE - SMALL))
    return max(1, round(max(small.device, small.host))), max(slope, 0.0)  # it comes last: nobody runs ahead of it


def _step(optimizer: str, size: int) -> Callable[[], object]:
    parameters = [torch.rand(size).requires_grad_() for _ in range(COUNT)]
    for parameter in parameters:
        parameter.grad = torch.rand_like(parameter)
    return _OPTIMIZERS[optimizer](parameters, lr=1e-6, foreach=True).step
