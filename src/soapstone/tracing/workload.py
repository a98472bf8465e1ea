"""What is to be trained: a model, example inputs, a loss and targets."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from copy import deepcopy
from dataclasses import dataclass, field, is_dataclass, replace
from itertools import chain
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import TreeSpec, register_dataclass, tree_flatten, tree_unflatten

from ..errors import CaptureError


@dataclass(frozen=True)
class Workload:
    """A model with example tensors of the whole batch. The loss is `loss(model(*inputs, **kwargs), *targets)`; with
    `loss=None` the model returns it, alone, first in a tuple, or as `output.loss`. Arguments and targets may hold
    tensors in dicts, tuples and dataclasses. Raises CaptureError where an argument is not what it should be.

    A step's batch is the tensors of the inputs, then of the keyword arguments, then of the targets: `work.batch`."""

    model: nn.Module
    inputs: tuple[Any, ...]
    loss: Callable[..., torch.Tensor] | None = field(default=None, kw_only=True)
    targets: tuple[Any, ...] = field(default=(), kw_only=True)
    kwargs: dict[str, Any] = field(default_factory=dict, kw_only=True)

    def __post_init__(self) -> None:
        if not isinstance(self.model, nn.Module):
            raise CaptureError(f"the model must be an nn.Module, not {type(self.model).__name__}")
        _refuse_wrapped(self.model)
        for name in ("inputs", "targets"):
            given = getattr(self, name)
            each = tuple(given) if type(given) in (tuple, list) else (given,)
            for i, value in enumerate(each):
                if not tensors_in(value):
                    where = f"{name}[{i}]" if type(given) in (tuple, list) else name
                    raise CaptureError(f"{where} must be a tensor, or hold some, not {type(value).__name__}")
            object.__setattr__(self, name, each)
        if self.targets and self.loss is None:
            raise CaptureError("targets are given, but no loss that takes them; pass loss=")

    def to(self, dtype: str) -> Workload:
        """The same in another floating-point type; the model itself is changed."""
        wanted: torch.dtype = getattr(torch, dtype)
        return self.mapped(self.model.to(wanted), lambda x: x.to(wanted) if x.is_floating_point() else x)

    @property
    def place(self) -> torch.device:
        """Where the model lies, by its first tensor that has memory."""
        places = dict.fromkeys(tensor.device for tensor in chain(self.model.parameters(), self.model.buffers()))
        return next((place for place in places if place.type != "meta"), next(iter(places), torch.device("cpu")))

    def on(self, place: torch.device) -> Workload:
        """The same on a device; the model itself is moved."""
        return self.mapped(self.model.to(place), lambda x: x.to(place))

    def mapped(self, model: nn.Module, change: Callable[[torch.Tensor], torch.Tensor]) -> Workload:
        """Another model, and every tensor of the batch changed."""
        inputs, kwargs, targets = self._changed(change)
        return replace(self, model=model, inputs=inputs, targets=targets, kwargs=kwargs)

    def off_meta(self) -> Workload:
        """The same with memory, of which nothing is touched, in place of the meta device's tensors."""
        if not any(t.is_meta for t in (*self.model.parameters(), *self.model.buffers(), *self.batch)):
            return self

        place = torch.device("cpu") if self.place.type == "meta" else self.place
        return self.mapped(
            _off_meta(self.model, place), lambda x: torch.zeros_like(x, device=place) if x.is_meta else x
        )

    @property
    def batch(self) -> tuple[torch.Tensor, ...]:
        """The example tensors in the order in which a step takes them."""
        return tensors_in(self._arguments)

    @property
    def _arguments(self) -> tuple[tuple[Any, ...], dict[str, Any], tuple[Any, ...]]:
        return self.inputs, self.kwargs, self.targets

    def filled(self, *batch: torch.Tensor) -> Workload:
        """The same with other tensors, in the same order; those that are not given stay."""
        given = iter(batch)
        return self.mapped(self.model, lambda tensor: next(given, tensor))

    def compute_loss(self, *batch: torch.Tensor, model: Callable[..., Any] | None = None) -> torch.Tensor:
        """The loss of a batch on one device, as plain PyTorch computes it; or with another call of the model."""
        given = iter(batch)
        inputs, kwargs, targets = self._changed(lambda tensor: next(given, tensor))
        output = (self.model if model is None else model)(*inputs, **kwargs)
        return _own_loss(output) if self.loss is None else self.loss(output, *targets)

    def _changed(self, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
        """The arguments with every tensor changed."""
        leaves, structure = _flat(self._arguments)
        return tree_unflatten([change(leaf) if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves], structure)


_WRAPPERS = {
    "DistributedDataParallel": "pass the plain one, which is its .module",
    "DataParallel": "pass the plain one, which is its .module",
    "FullyShardedDataParallel": "pass the plain one, before it is wrapped",
    "FSDPModule": "pass the plain one, before fully_shard",
}


def _refuse_wrapped(model: nn.Module) -> None:
    """Raise CaptureError if somebody else splits the model already."""
    for module in model.modules():
        for kind in type(module).__mro__:
            if kind.__name__ in _WRAPPERS and kind.__module__.startswith("torch."):
                raise CaptureError(f"the model is split by {kind.__name__} already; {_WRAPPERS[kind.__name__]}")
    for name, parameter in model.named_parameters():
        if type(parameter.data).__name__ == "DTensor":
            raise CaptureError(f"the parameter {name!r} is split by DTensor already; pass the plain model")


def flattened(batch: Iterable[Any]) -> tuple[Any, ...]:
    """Tensors in place of what holds some; what holds none stays as it is."""
    found = ((each,) if isinstance(each, torch.Tensor) else tensors_in(each) or (each,) for each in batch)
    return tuple(chain.from_iterable(found))


def tensors_in(value: Any) -> tuple[torch.Tensor, ...]:
    """The tensors that it is or holds, in dicts, lists, tuples, dataclasses, and whatever torch's pytrees know."""
    return tuple(leaf for leaf in _flat(value)[0] if isinstance(leaf, torch.Tensor))


def _flat(value: Any) -> tuple[list[Any], TreeSpec]:
    leaves, structure = tree_flatten(value)
    unknown = {type(leaf) for leaf in leaves if is_dataclass(leaf) and not isinstance(leaf, type)}
    for kind in unknown:
        register_dataclass(kind)
    return _flat(value) if unknown else (leaves, structure)


def _off_meta(model: nn.Module, place: torch.device) -> nn.Module:
    real = (tensor for tensor in (*model.parameters(), *model.buffers()) if not tensor.is_meta)
    twin = deepcopy(model, {id(tensor): tensor for tensor in real})
    made: dict[int, torch.Tensor] = {}  # so that tied parameters stay tied
    for module in twin.modules():
        for name, tensor in (*module._parameters.items(), *module._buffers.items()):
            if tensor is None or not tensor.is_meta:
                continue
            if id(tensor) not in made:
                empty = torch.empty_like(tensor, device=place)
                trained = nn.Parameter(empty, tensor.requires_grad) if name in module._parameters else empty
                made[id(tensor)] = trained
            holder: dict[str, Any] = module._parameters if name in module._parameters else module._buffers
            holder[name] = made[id(tensor)]
    return twin


def _own_loss(output: Any) -> Any:
    if isinstance(output, tuple | list) and output:
        return output[0]
    return output if isinstance(output, torch.Tensor) else getattr(output, "loss", output)
