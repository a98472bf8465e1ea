"""Where a model's first weights come from: every rank's own, rank 0's, or none yet (the meta device)."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping

import torch
from torch import nn

from ..errors import RankError
from .casting import check_cast, check_plain
from .transports import Row, Transport

_DRAWING = threading.Lock()  # torch's generator is one for all threads
CHOICES = ("broadcast", "verify")


def state_of(model: nn.Module) -> dict[str, torch.Tensor]:
    """Parameters and buffers, under all of their names."""
    return dict(model.named_parameters(remove_duplicate=False)) | dict(model.named_buffers(remove_duplicate=False))


def check_state(
    own: Mapping[str, torch.Tensor], state: Mapping[str, torch.Tensor], aliases: Mapping[str, str], source: str
) -> None:
    """Raise RankError unless a state has the model's tensors, with values that the model's types can represent.
    `aliases` maps the names of tied weights to the name that each stands for."""
    for name, tensor in own.items():
        given = state.get(name)
        if not isinstance(given, torch.Tensor):
            raise RankError(f"{source} has no tensor {name!r}, which the model has")
        check_plain(name, given, source)
        if given.shape != tensor.shape:
            found, wanted = list(given.shape), list(tensor.shape)
            raise RankError(f"{name!r} has shape {found} in {source}, but {wanted} in the model")
        check_cast(name, given, tensor.dtype, source)
    for name in state:
        if name not in own:
            raise RankError(f"{source} has {name!r}, which the model does not have")
        other = aliases.get(name, name)
        if other in own and not _are_equal(state[name], state[other]):
            raise RankError(f"{name!r} and {other!r} differ in {source}, but are one tensor in the model")


def _are_equal(one: torch.Tensor, other: torch.Tensor) -> bool:
    if one is other or one.data_ptr() == other.data_ptr():
        return True
    one, other = one.detach().cpu(), other.detach().cpu()
    return bool(((one == other) | (one.isnan() & other.isnan())).all())


def is_meta(model: nn.Module) -> bool:
    return any(tensor.is_meta for tensor in state_of(model).values())


@torch.no_grad()
def broadcast(transport: Transport, model: nn.Module, place: torch.device) -> None:
    """Give every rank's model rank 0's values, tensor by tensor, by way of the device that ranks talk from."""
    everyone = tuple(range(transport.size))
    for tensor in dict.fromkeys(state_of(model).values()):
        plain = tensor.detach().to(place, torch.uint8 if tensor.dtype == torch.bool else tensor.dtype)
        given = plain.clone() if transport.rank == 0 else torch.zeros_like(plain)
        tensor.copy_(transport.all_reduce(Row.FIRST_WEIGHTS, given, everyone)())


def materialised(model: nn.Module, seed: int) -> Iterator[tuple[str, torch.Tensor]]:
    """First values of a model on the meta device, one module at a time by its own `reset_parameters`, each dropped
    before the next is made. Raises RankError for a module that has none."""
    with _DRAWING, torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        for path, module in model.named_modules():
            own = [*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)]
            if not any(tensor.is_meta for _, tensor in own):
                yield from ((f"{path}.{name}".lstrip("."), tensor) for name, tensor in own)
                continue
            reset = getattr(module, "reset_parameters", None)
            if not callable(reset):
                kind = type(module).__name__
                raise RankError(
                    f"module {path or kind!r} is on the meta device and has no reset_parameters to get its first "
                    "values from; give it one, or build the model on the CPU"
                )
            module.to_empty(device="cpu", recurse=False)
            module.reset_parameters()
            real = [*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)]
            yield from ((f"{path}.{name}".lstrip("."), tensor) for name, tensor in real)
            module._apply(lambda tensor: torch.empty_like(tensor, device="meta"), recurse=False)
