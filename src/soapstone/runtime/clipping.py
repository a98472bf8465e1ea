"""The norm of all gradients, each element counted once, and scaling by it."""

from __future__ import annotations

import math

import torch

from ..errors import RankError
from .store import Store
from .transports import Row, Transport


def clip_grad_norm(
    store: Store, transport: Transport, place: torch.device, max_norm: float, norm_type: float
) -> torch.Tensor:
    """As torch.nn.utils.clip_grad_norm_ does on one device."""
    if not max_norm >= 0 or not norm_type > 0:
        raise RankError(f"clip_grad_norm_ takes a norm of 0 or more and a type above 0, not {max_norm}, {norm_type}")
    norm = _norm(store, transport, place, norm_type)
    scale = (max_norm / (norm + 1e-6)).clamp(max=1.0)
    for _, parameter in store.parameters():
        if parameter.grad is not None:
            parameter.grad.mul_(scale.to(parameter.grad.dtype))
    return norm


def _norm(store: Store, transport: Transport, place: torch.device, norm_type: float) -> torch.Tensor:
    windows = [window.reshape(-1) for window in store.first_windows()]
    dtype = next((getattr(torch, tensor.dtype) for tensor in store.graph.tensors if tensor.grad), torch.float32)
    if math.isinf(norm_type):
        own = [window.abs().max().item() for window in windows if window.numel()]
        largest = max((value for values in transport.exchange(own) for value in values), default=0.0)
        return torch.tensor(largest, dtype=dtype, device=place)
    total = sum(
        (window.abs().pow(norm_type).sum(dtype=torch.float64) for window in windows),
        torch.zeros((), dtype=torch.float64, device=place),
    )
    if transport.size > 1:
        total = transport.all_reduce(Row.NORM, total, tuple(range(transport.size)))()
    return total.pow(1 / norm_type).to(dtype)
