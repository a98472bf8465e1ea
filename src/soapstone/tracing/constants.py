"""The elements of constants, written out only where the graph keeps them: masks are often expanded to the batch."""

from __future__ import annotations

import base64
import hashlib
from dataclasses import dataclass, field

import torch


@dataclass(frozen=True)
class Elements:
    tensor: torch.Tensor = field(compare=False)
    digest: str  # of the type and the elements

    @classmethod
    def of(cls, tensor: torch.Tensor) -> Elements:
        """As they are now: what is read may be changed in place later."""
        found = once(tensor).clone()
        digest = hashlib.sha256(f"{found.dtype} {list(found.shape)}".encode() + _bytes(found)).hexdigest()
        return cls(found.expand(tensor.shape), digest)

    def encoded(self) -> str:
        return base64.b64encode(_bytes(self.tensor)).decode()


def once(tensor: torch.Tensor) -> torch.Tensor:
    """With size 1 along the axes that it was expanded along."""
    for axis, (size, stride) in enumerate(zip(tensor.shape, tensor.stride())):
        if size > 1 and stride == 0:
            tensor = tensor.narrow(axis, 0, 1)
    return tensor


def _bytes(tensor: torch.Tensor) -> bytes:
    return tensor.reshape(-1).contiguous().view(torch.uint8).numpy().tobytes()
