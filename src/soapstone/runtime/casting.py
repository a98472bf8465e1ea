"""Checks whether a tensor's values can be copied to a tensor of the model: they must exist, and change by no more than
rounding."""

from __future__ import annotations

import torch
from torch.nn.parameter import is_lazy

from ..errors import RankError


def check_plain(name: str, tensor: torch.Tensor, source: str) -> None:
    """Raise RankError if a tensor has no values, or is not a plain dense tensor."""
    if is_lazy(tensor) or tensor.is_meta or type(tensor).__name__ == "FakeTensor":
        raise RankError(f"{name!r} in {source} has no values, only a shape; save it from a model that has values")
    if hasattr(tensor, "full_tensor"):
        raise RankError(f"{name!r} in {source} is a DTensor, one rank's part; pass its full_tensor()")
    if tensor.is_quantized:
        raise RankError(f"{name!r} in {source} is quantized; pass its dequantize()")
    if tensor.is_nested or tensor.layout != torch.strided:
        raise RankError(f"{name!r} in {source} is sparse or nested; pass its to_dense()")


def check_cast(name: str, tensor: torch.Tensor, dtype: torch.dtype, source: str) -> None:
    """Raise RankError if converting the values to `dtype` changes them by more than rounding."""
    if tensor.dtype == dtype or not tensor.numel():
        return
    values = tensor.detach()
    if values.is_complex() and not dtype.is_complex:
        raise RankError(f"{name!r} is complex in {source}, but {_name_of(dtype)} in the model; pass its real part")
    if dtype.is_floating_point or dtype.is_complex:
        if _overflows(values, torch.finfo(dtype).max):
            raise RankError(f"{name!r} in {source} has values too large for {_name_of(dtype)}, its type in the model")
    elif not torch.equal(values.to(dtype).to(values.dtype), values):
        raise RankError(f"{name!r} in {source} has values that {_name_of(dtype)}, its type in the model, cannot hold")


def _overflows(values: torch.Tensor, most: float) -> bool:
    is_real = values.dtype.is_floating_point or values.is_complex()
    if (torch.finfo(values.dtype).max if is_real else torch.iinfo(torch.int64).max) <= most:
        return False
    wide = values.to(torch.complex128 if values.is_complex() else torch.float64)
    return bool((wide.isfinite() & (wide.abs() > most)).any())


def _name_of(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
