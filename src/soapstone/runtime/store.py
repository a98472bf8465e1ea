"""What a rank keeps: constants, and its boxes of parameters and buffers."""

from __future__ import annotations

import base64

import torch

from ..graph import Tensor


def constant(tensor: Tensor) -> torch.Tensor:
    """A constant of the graph as a torch tensor."""
    dtype = getattr(torch, tensor.dtype)
    if tensor.data is None:
        return torch.full(tensor.shape, tensor.fill or 0, dtype=dtype)
    raw = bytearray(base64.b64decode(tensor.data))
    return torch.frombuffer(raw, dtype=torch.uint8).view(dtype).reshape(tensor.shape).clone()
