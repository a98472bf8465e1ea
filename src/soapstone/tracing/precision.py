"""Mixed precision: which autocast a model is captured under, and a twin of the model that this autocast applies to.

torch casts by lists of ops that differ between device types, and only tensors that lie on the type that autocast names.
So a model that lies elsewhere is captured as fake tensors on that type, which need neither memory nor the device.
"""

from __future__ import annotations

import copy
import operator
from dataclasses import dataclass
from itertools import chain
from typing import Any

import torch
from torch import fx, nn
from torch._subclasses.fake_tensor import FakeCopyMode, FakeTensorMode
from torch.amp import autocast_mode
from torch.utils._pytree import tree_map

from ..errors import CaptureError
from .workload import Workload

DEVICE_TYPES = ("cpu", "cuda")
# Calls that stay one call in a graph, though CUDA's autocast casts what they do inside.
_CAST_INSIDE = {"lstm", "gru", "rnn_tanh", "rnn_relu"}
REGION = "wrap_with_autocast"


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


def cast_for_composite(func: Any, args: Any, kwargs: Any) -> tuple[Any, Any]:
    """The arguments as CUDA's autocast would cast them for what a composite does inside."""
    name = getattr(func, "__name__", "")
    if name not in _CAST_INSIDE or not torch.is_autocast_enabled("cuda"):
        return args, kwargs
    dtype = torch.get_autocast_dtype("cuda")

    def cast(x: Any) -> Any:
        known = isinstance(x, torch.Tensor) and x.is_cuda and x.is_floating_point() and x.dtype != torch.float64
        return x.to(dtype) if known else x

    return tree_map(cast, args), tree_map(cast, kwargs)


def region_elsewhere(module: fx.GraphModule, own: str) -> str | None:
    """The device type that a region of autocast inside the model names, where the model does not lie there."""
    for inner in module.modules():
        for node in inner.graph.nodes if isinstance(inner, fx.GraphModule) else ():
            if str(node.target) == REGION and node.args[2]:
                device, dtype = node.args[:2]
                Autocast(device, dtype or torch.get_autocast_dtype(device))
                if device != own:
                    return str(device)
    return None


def inline_regions(module: fx.GraphModule) -> None:
    """Put the calls of each region between the two that switch autocast on and off. Functionalisation then keeps what
    is known of a call, such as the module that it stands in, which it forgets inside a region."""
    graph = module.graph
    for node in [node for node in graph.nodes if str(node.target) == REGION]:
        device, dtype, enabled, cached, inner, *given = node.args
        calls = getattr(module, inner.target)
        inline_regions(calls)
        places = [n for n in calls.graph.nodes if n.op == "placeholder"]
        body = [n for n in calls.graph.nodes if n.op not in ("placeholder", "output")]
        if any(n.op == "get_attr" for n in body) or any(user.target is not operator.getitem for user in node.users):
            continue
        copied = dict(zip(places, given))
        with graph.inserting_before(node):
            switched = graph.call_function(autocast_mode._enter_autocast, (device, dtype, enabled, cached))
            for n in body:
                copied[n] = graph.node_copy(n, copied.__getitem__)
            graph.call_function(autocast_mode._exit_autocast, (switched,))
        (results,) = calls.graph.find_nodes(op="output")
        for user in list(node.users):
            user.replace_all_uses_with(copied[results.args[0][user.args[1]]])
            graph.erase_node(user)
        graph.erase_node(node)
    module.recompile()


def twin_on(work: Workload, device: str) -> Workload:
    """The same workload as fake tensors on a device type. They are not trained, as torch without CUDA cannot have that;
    what is trained is read from the model itself."""
    for path, module in work.model.named_modules():
        for name, value in module.__dict__.items():
            if isinstance(value, torch.Tensor) and value.requires_grad:
                where, shape = f"{path}.{name}".lstrip("."), list(value.shape)
                raise CaptureError(f"{where!r}, a trained tensor of shape {shape}, is no parameter; register it")
    mode = FakeTensorMode(allow_non_fake_inputs=True)

    def moved(tensor: torch.Tensor) -> torch.Tensor:
        with mode:
            return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=device)

    with FakeCopyMode(mode):
        twin: nn.Module = copy.deepcopy(work.model)
    for module in twin.modules():
        for name, tensor in (*module._parameters.items(), *module._buffers.items(), *module.__dict__.items()):
            if isinstance(tensor, nn.Parameter):
                setattr(module, name, nn.Parameter(moved(tensor), requires_grad=False))
            elif isinstance(tensor, torch.Tensor):
                setattr(module, name, moved(tensor))
    return work.mapped(twin, moved)


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
