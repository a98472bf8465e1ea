"""Mixed precision: which autocast a model is captured under."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain

import torch

from ..errors import CaptureError
from .workload import Workload

DEVICE_TYPES = ("cpu", "cuda")


@dataclass(frozen=True)
class Autocast:
    """To a type, by the rules of a device type. Raises CaptureError for what training here cannot do."""

    device: str
    dtype: torch.dtype

    def __post_init__(self) -> None:
        if self.dtype == torch.float16:
            raise CaptureError(
                "autocast to float16 needs a loss scale, which training here does not have; "
                "use bfloat16: torch.autocast(device, torch.bfloat16)"
            )
        if self.device not in DEVICE_TYPES or self.dtype != torch.bfloat16:
            raise CaptureError(f"autocast to {self} is not known; use cuda:bfloat16 or cpu:bfloat16")

    def __str__(self) -> str:
        return f"{self.device}:{str(self.dtype).removeprefix('torch.')}"

    @classmethod
    def parse(cls, text: str) -> Autocast | None:
        """`cuda:bfloat16`, or `bfloat16` alone, which means CUDA's rules; nothing for an empty text."""
        if not text:
            return None
        device, _, name = text.rpartition(":")
        dtype = getattr(torch, name, None)
        if not isinstance(dtype, torch.dtype):
            raise CaptureError(f"amp={text!r} is not known; use 'bfloat16', 'cuda:bfloat16' or 'cpu:bfloat16'")
        return cls(device or "cuda", dtype)

    @classmethod
    def active(cls, own: str) -> Autocast | None:
        """What is on around this call: for the model's own device type first."""
        for device in sorted(DEVICE_TYPES, key=lambda device: device != own):
            if torch.is_autocast_enabled(device):
                return cls(device, torch.get_autocast_dtype(device))
        return None


def device_type(work: Workload) -> str:
    """Where a workload lies. Raises CaptureError where it is spread over devices, or half of it is on meta."""
    named = chain(work.model.named_parameters(), work.model.named_buffers())
    model = {tensor.device: name for name, tensor in named}
    if len(model) > 1:
        (one, first), (other, second), *_ = model.items()
        raise CaptureError(
            f"the model lies on several devices, {first!r} on {one} and {second!r} on {other}; put all of it on one"
        )
    place = work.place
    for number, tensor in enumerate(work.batch):
        if "meta" not in (place.type, tensor.device.type) and tensor.device != place:
            raise CaptureError(
                f"the model is on {place}, but tensor {number} of the batch on {tensor.device}; put both on one device"
            )
    return "cpu" if place.type == "meta" else place.type
