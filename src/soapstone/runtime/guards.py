"""Makes functions of torch raise RankError if they would be silently wrong on the plain model or on one rank's shards.

A loop that was written for one device passes torch the plain model, although steps may train other tensors, or a
rank's shards as if they were all parameters. torch's functions only see tensors. So functions that would go wrong are
wrapped when the first model becomes parallel, and look up here whose tensors they were given. Of these, training
itself calls only `optimizer.step`, where each optimizer is checked once.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from functools import wraps
from inspect import signature
from types import GeneratorType
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

import torch
from torch import nn, optim
from torch.nn import utils
from torch.nn.utils import clip_grad, convert_parameters
from torch.optim import swa_utils
from torch.optim.optimizer import register_optimizer_step_pre_hook

from ..errors import RankError
from .elementwise import is_elementwise
from .store import Store

_LOCK = threading.Lock()  # ranks may be threads
_live: WeakSet[Guarded] = WeakSet()
_accepted: WeakKeyDictionary[optim.Optimizer, Guarded | None] = WeakKeyDictionary()  # the rank whose shards it has
_installed: list[Any] = []


class Guarded:
    """What the guards know about one rank of a model: the plain model, the rank's shards, and how often these
    changed."""

    def __init__(self, model: nn.Module, store: Store) -> None:
        self.changes, self.is_accumulating = 0, False
        self._model, self._store = model, store
        self._first = self._plain()
        self._seen = 0, self._versions()
        self.cut = next(_not_whole(store), "")  # why this rank's shards are not the whole model
        with _LOCK:
            _live.add(self)
            _accepted.clear()
            if not _installed:
                _install()

    def has_shard(self, tensors: Iterable[torch.Tensor]) -> bool:
        """Whether any of these tensors is one of this rank's shards, or the gradient of one."""
        known = {id(tensor) for tensor in tensors}
        return any(id(each) in known or id(each.grad) in known for _, each in self._store.parameters())

    def has_plain(self, parameters: Iterable[torch.Tensor]) -> bool:
        """Whether these include parameters of the plain model, as it is or as it was before this rank freed some."""
        plain = self._first.keys() | self._plain().keys()
        return any(id(each) in plain for each in parameters)

    def is_idle(self, parameters: Iterable[torch.Tensor]) -> bool:
        """Whether these include parameters of the plain model, without gradients although the shards were trained."""
        plain = self._first | self._plain()
        found = [each for each in parameters if id(each) in plain]
        return bool(found) and self.changes > 0 and all(each.grad is None for each in found)

    def is_stale(self, model: nn.Module) -> bool:
        """Whether a model is the plain one, and lacks parameters, or has not changed since the last call although the
        shards have."""
        plain = self._plain()
        if not any(id(parameter) in plain for parameter in model.parameters()):
            return False
        changes, versions = self._seen
        stale = any(parameter.is_meta for parameter in plain.values()) or (
            self.changes > changes and self._versions() == versions
        )
        if not stale:
            self._seen = self.changes, self._versions()
        return stale

    def _versions(self) -> list[tuple[int, int]]:
        return [(number, parameter._version) for number, parameter in self._plain().items()]

    def _plain(self) -> dict[int, torch.Tensor]:
        """The trained parameters of the model that are not this rank's shards, by id."""
        own = {id(parameter) for _, parameter in self._store.parameters()}
        return {id(each): each for each in self._model.parameters() if each.requires_grad and id(each) not in own}


def _not_whole(store: Store) -> Iterator[str]:
    """The parameters that this rank does not have whole, each in a few words."""
    own = {shard.name: i for i, shard in store.shards.items()}
    for tensor in (tensor for tensor in store.graph.tensors if tensor.source == "parameter" and tensor.grad):
        i = own.get(tensor.name)
        if i is None:
            yield f"{tensor.name!r} is on another rank"
        elif i in store.sharded or tuple(store.shards[i].tensor.shape) != tuple(tensor.shape):
            yield f"{tensor.name!r} is cut between ranks"


def _all() -> list[Guarded]:
    with _LOCK:
        return list(_live)


def _parameters(optimizer: optim.Optimizer) -> list[torch.Tensor]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


# The checks before each function


def _check_step(optimizer: optim.Optimizer, arguments: Any, options: Any) -> None:
    owner = _accepted[optimizer] if optimizer in _accepted else _accept(optimizer)
    if owner is not None and owner.is_accumulating:
        raise RankError(f"{_UNSUMMED}; call optimizer.step() after a step that syncs")


def _accept(optimizer: optim.Optimizer) -> Guarded | None:
    """The rank whose shards an optimizer has, or None. Raises RankError if the optimizer must not have them."""
    given, live, kind = _parameters(optimizer), _all(), type(optimizer).__name__
    if any(each.is_idle(given) for each in live):
        raise RankError(
            f"{kind} has the plain model's parameters, which no step trains; make it with parallel.parameters()"
        )
    owner = next((each for each in live if each.has_shard(given)), None)
    if owner is not None and owner.cut and not is_elementwise(optimizer):
        raise RankError(
            f"{kind} computes with whole parameters, but {owner.cut}; use an elementwise optimizer such as AdamW, or "
            "data parallelism without shards"
        )
    if not any(each.has_plain(given) for each in live):
        _accepted[optimizer] = owner
    return owner


def _check_norm(tensors: list[torch.Tensor]) -> None:
    for each in _all():
        if (each.cut or each.is_accumulating) and each.has_shard(tensors):
            what = each.cut or _UNSUMMED
            raise RankError(f"torch's norm is that of this rank's gradients alone, but {what}; {_CLIP}")


def _check_gradients(parameters: list[torch.Tensor]) -> None:
    if any(each.is_idle(parameters) for each in _all()):
        raise RankError(f"the plain model has no gradients to clip, since no step trains it; {_CLIP}")


def _check_clipping(parameters: list[torch.Tensor]) -> None:
    _check_gradients(parameters)
    _check_norm(parameters)


def _check_vector(parameters: list[torch.Tensor]) -> None:
    for each in _all():
        if each.cut and each.has_shard(parameters):
            raise RankError(
                f"one rank's parameters are not the model's, since {each.cut}; make the vector of the values of "
                "parallel.state_dict(), and load them with parallel.load_state_dict()"
            )


def _check_scaler(optimizer: optim.Optimizer) -> None:
    if any(each.has_shard(_parameters(optimizer)) for each in _all()):
        raise RankError(
            "a GradScaler divides gradients by its scale, but parallel.step does not scale its loss; leave it out, and "
            'capture with precision="autocast"'
        )


def _check_model(model: nn.Module) -> None:
    if any(each.is_stale(model) for each in _all()):
        raise RankError(
            "the plain model does not have the trained weights: this Parallel trains tensors of its own; call "
            "model.load_state_dict(parallel.state_dict()) first, on every rank"
        )


_UNSUMMED = "the last step had sync=False, so gradients are not summed yet"
_CLIP = "use parallel.clip_grad_norm_(max_norm), which every rank calls"


# Wrapping torch's functions


def _install() -> None:
    scaler = torch.amp.GradScaler
    _installed.append(register_optimizer_step_pre_hook(_check_step))
    _guard(clip_grad, "clip_grad_norm_", "parameters", _check_clipping)
    _guard(clip_grad, "clip_grad_value_", "parameters", _check_gradients)
    _guard(clip_grad, "_get_total_norm", "tensors", _check_norm)
    _guard(convert_parameters, "parameters_to_vector", "parameters", _check_vector)
    _guard(convert_parameters, "vector_to_parameters", "parameters", _check_vector)
    _guard(scaler, "unscale_", "optimizer", _check_scaler, lambda self: self.is_enabled())
    _guard(scaler, "step", "optimizer", _check_scaler, lambda self: self.is_enabled())
    _guard(swa_utils.AveragedModel, "__init__", "model", _check_model)
    _guard(swa_utils.AveragedModel, "update_parameters", "model", _check_model)
    _guard(swa_utils, "update_bn", "model", _check_model)


def _guard(
    owner: Any,
    name: str,
    argument: str,
    check: Callable[[Any], None],
    applies: Callable[[Any], bool] = lambda self: True,
) -> None:
    """Make a function of torch check one of its arguments first. If torch wraps the function in no_grad, it is replaced
    inside of that wrapper, so that names which were imported earlier are guarded, too."""
    outer = getattr(owner, name)
    cells = [cell for cell in outer.__closure__ or () if cell.cell_contents is getattr(outer, "__wrapped__", cell)]
    inner = cells[0].cell_contents if cells else outer
    known = signature(inner)

    @wraps(inner)
    def guarded(*args: Any, **options: Any) -> Any:
        bound = known.bind(*args, **options)
        given = bound.arguments[argument]
        if isinstance(given, Iterable) and not isinstance(given, nn.Module):
            given = [given] if isinstance(given, torch.Tensor) else list(given)
            if isinstance(bound.arguments[argument], GeneratorType):
                bound.arguments[argument] = (each for each in given)  # torch warns of an empty one
        if applies(args[0] if args else None):
            check(given)
        return inner(*bound.args, **bound.kwargs)

    if cells:
        cells[0].cell_contents = guarded
        return
    for place in (owner, utils):
        if getattr(place, name, None) is outer:
            setattr(place, name, guarded)
