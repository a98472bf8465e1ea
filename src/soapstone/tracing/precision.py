"""Precision: autocast's, or parameters that are cast before they are used, as FSDP2's MixedPrecisionPolicy has it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import chain
from typing import Any

import torch
from torch import nn
from torch.func import functional_call
from torch.utils._pytree import tree_map

from ..errors import CaptureError
from .workload import Workload

DEVICE_TYPES = ("cpu", "cuda")
LOWER = torch.bfloat16


@dataclass(frozen=True)
class Autocast:
    """To a type, by the rules of a device type. Raises CaptureError for what training here cannot do."""

    device: str
    dtype: torch.dtype = LOWER

    def __post_init__(self) -> None:
        if self.dtype == torch.float16:
            raise CaptureError(
                "autocast to float16 needs a loss scale, which training here does not have; "
                "use bfloat16: torch.autocast(device, torch.bfloat16)"
            )
        if self.device not in DEVICE_TYPES or self.dtype != LOWER:
            name = str(self.dtype).removeprefix("torch.")
            raise CaptureError(f"autocast on {self.device} to {name} is not supported; use cuda or cpu, and bfloat16")

    def __str__(self) -> str:
        return f"autocast:{self.device}"

    @classmethod
    def active(cls, own: str) -> Autocast | None:
        """What is on around this call: for the model's own device type first."""
        for device in sorted(DEVICE_TYPES, key=lambda device: device != own):
            if torch.is_autocast_enabled(device):
                return cls(device, torch.get_autocast_dtype(device))
        return None


@dataclass(frozen=True)
class Mixed:
    """Parameters, their gradients and the optimizer's state stay as they are; the model computes in bfloat16. Buffers
    stay, too: rotary frequencies need full precision."""

    def __str__(self) -> str:
        return "mixed"


Precision = Autocast | Mixed
PRECISIONS: dict[str, Precision | None] = {
    "": None, "autocast": Autocast("cuda"), "autocast:cuda": Autocast("cuda"), "autocast:cpu": Autocast("cpu"),
    "mixed": Mixed(),
}  # fmt: skip


def precision_of(text: str) -> Precision | None:
    """`autocast` alone means CUDA's rules; nothing for an empty text: in the types that the model has."""
    if text in ("float16", "bfloat16", "float32", "float64"):
        raise CaptureError(f"a model is captured in the types that it has; convert it before: model.to(torch.{text})")
    if text not in PRECISIONS:
        raise CaptureError(f"precision={text!r} is not known; use {', '.join(map(repr, filter(None, PRECISIONS)))}")
    return PRECISIONS[text]


def lowered(model: nn.Module) -> Callable[..., Any]:
    """A call of a model with its parameters and all it is given in bfloat16. Batch norm keeps its own, as its kernels
    ask for the type of the running statistics."""
    kept = {id(p) for m in model.modules() if "running_mean" in m._buffers for p in m.parameters(recurse=False)}

    def call(*args: Any, **kwargs: Any) -> Any:
        parameters = {name: _lower(p) for name, p in model.named_parameters() if id(p) not in kept}
        return functional_call(model, parameters, tree_map(_lower, args), tree_map(_lower, kwargs))

    return call


def _lower(x: Any) -> Any:
    return x.to(LOWER) if isinstance(x, torch.Tensor) and x.is_floating_point() else x


def eager_loss(
    work: Workload, batch: tuple[torch.Tensor, ...], precision: str, model: nn.Module | None = None
) -> torch.Tensor:
    """The loss as plain PyTorch computes it in a precision; perhaps of a model that wraps the workload's."""
    asked, model = precision_of(precision), work.model if model is None else model
    if isinstance(asked, Mixed):
        return work.compute_loss(*batch, model=lowered(model))
    with torch.autocast(work.place.type, LOWER, enabled=asked is not None):
        return work.compute_loss(*batch, model=model)


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
