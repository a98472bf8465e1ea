"""What is to be trained: a model, example inputs, a loss and targets."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any

import torch
from torch import nn

from ..errors import CaptureError


@dataclass(frozen=True)
class Workload:
    """A model with example tensors of the whole batch. The loss is `loss(model(*inputs, **kwargs), *targets)`; with
    `loss=None` the model returns it, alone, first in a tuple, or as `output.loss`. Raises CaptureError where an
    argument is not what it should be.

    A step's batch is the inputs, then the tensors among the keyword arguments, then the targets: `work.batch`."""

    model: nn.Module
    inputs: tuple[torch.Tensor, ...]
    loss: Callable[..., torch.Tensor] | None = field(default=None, kw_only=True)
    targets: tuple[torch.Tensor, ...] = field(default=(), kw_only=True)
    kwargs: dict[str, Any] = field(default_factory=dict, kw_only=True)

    def __post_init__(self) -> None:
        if not isinstance(self.model, nn.Module):
            raise CaptureError(f"the model must be an nn.Module, not {type(self.model).__name__}")
        for name in ("inputs", "targets"):
            given = getattr(self, name)
            if not isinstance(given, torch.Tensor | tuple | list):
                raise CaptureError(f"{name} must be a tuple of tensors, not {type(given).__name__}")
            tensors = (given,) if isinstance(given, torch.Tensor) else tuple(given)
            for i, tensor in enumerate(tensors):
                if not isinstance(tensor, torch.Tensor):
                    raise CaptureError(f"{name}[{i}] must be a tensor, not {type(tensor).__name__}")
            object.__setattr__(self, name, tensors)
        for name, value in self.kwargs.items():
            if not isinstance(value, torch.Tensor) and _holds_tensor(value):
                raise CaptureError(f"kwargs[{name!r}] holds tensors inside; pass each tensor as an argument of its own")
        if self.targets and self.loss is None:
            raise CaptureError("targets are given, but no loss that takes them; pass loss=")

    def to(self, dtype: str) -> Workload:
        """The same in another floating-point type; the model itself is changed."""
        wanted: torch.dtype = getattr(torch, dtype)
        return self._with(self.model.to(wanted), lambda x: x.to(wanted) if x.is_floating_point() else x)

    @property
    def place(self) -> torch.device:
        """Where the model lies, by its first tensor."""
        tensors = chain(self.model.parameters(), self.model.buffers())
        return next((tensor.device for tensor in tensors), torch.device("cpu"))

    def on(self, place: torch.device) -> Workload:
        """The same on a device; the model itself is moved."""
        return self._with(self.model.to(place), lambda x: x.to(place))

    def _with(self, model: nn.Module, change: Callable[[torch.Tensor], torch.Tensor]) -> Workload:
        """Another model, and every tensor of the batch changed."""

        def changed(value: Any) -> Any:
            return change(value) if isinstance(value, torch.Tensor) else value

        inputs, targets = tuple(map(changed, self.inputs)), tuple(map(changed, self.targets))
        kwargs = {name: changed(value) for name, value in self.kwargs.items()}
        return replace(self, model=model, inputs=inputs, targets=targets, kwargs=kwargs)

    def off_meta(self) -> Workload:
        """The same with memory, of which nothing is touched, in place of the meta device's tensors."""
        if not any(t.is_meta for t in (*self.model.parameters(), *self.model.buffers(), *self.batch)):
            return self

        return self._with(_off_meta(self.model), lambda x: torch.zeros_like(x, device="cpu") if x.is_meta else x)

    @property
    def batch(self) -> tuple[torch.Tensor, ...]:
        """The example tensors in the order in which a step takes them."""
        return (*self.inputs, *(self.kwargs[name] for name in self._named), *self.targets)

    @property
    def _named(self) -> list[str]:
        return [name for name, value in self.kwargs.items() if isinstance(value, torch.Tensor)]

    def compute_loss(self, *batch: torch.Tensor) -> torch.Tensor:
        """The loss of a batch on one device, as plain PyTorch computes it."""
        first, last = len(self.inputs), len(self.inputs) + len(self._named)
        named = dict(zip(self._named, batch[first:last]))
        output = self.model(*batch[:first], **{**self.kwargs, **named})
        return _own_loss(output) if self.loss is None else self.loss(output, *batch[last:])


def _off_meta(model: nn.Module) -> nn.Module:
    twin = deepcopy(model)
    made: dict[int, torch.Tensor] = {}  # so that tied parameters stay tied
    for module in twin.modules():
        for name, tensor in (*module._parameters.items(), *module._buffers.items()):
            if tensor is None or not tensor.is_meta:
                continue
            if id(tensor) not in made:
                empty = torch.empty_like(tensor, device="cpu")
                trained = nn.Parameter(empty, tensor.requires_grad) if name in module._parameters else empty
                made[id(tensor)] = trained
            holder: dict[str, Any] = module._parameters if name in module._parameters else module._buffers
            holder[name] = made[id(tensor)]
    return twin


def _holds_tensor(value: Any) -> bool:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple | set) else ()
    return isinstance(value, torch.Tensor) or any(map(_holds_tensor, inner))


def _own_loss(output: Any) -> Any:
    if isinstance(output, tuple | list) and output:
        return output[0]
    return output if isinstance(output, torch.Tensor) else getattr(output, "loss", output)
