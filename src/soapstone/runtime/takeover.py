"""What becomes of the user's own model.

A parameter or buffer that a rank keeps whole is the user's own tensor, and trains in place. Parameters that a rank
keeps in part or not at all move to the meta device, which frees their memory. Then the model's `state_dict` refuses,
and `load_state_dict` makes the model whole again. A model serves one Parallel at a time; others get copies.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from weakref import WeakKeyDictionary, WeakSet, ref

import torch
from torch import nn

from ..errors import RankError
from .store import Store
from .weights import is_meta, state_of

_LOCK = threading.Lock()  # ranks may be threads
_owners: WeakKeyDictionary[nn.Module, ref[Takeover]] = WeakKeyDictionary()
_moved: WeakSet[nn.Module] = WeakSet()  # models with parameters that were moved to the meta device
_asked = threading.local()


class Takeover:
    """One Parallel's right to a model, for as long as this object lives."""

    def __init__(self, model: nn.Module, *, wanted: bool) -> None:
        self._model = model
        with _LOCK:
            owner = _owners.get(model)
            self.is_granted = wanted and not is_meta(model) and (owner is None or owner() is None)
            if self.is_granted:
                _owners[model] = ref(self)

    def free(self, store: Store, place: torch.device) -> None:
        """Free the parameters that this rank does not keep whole, and put the rest of the model on the rank's device.
        Parameters stay if some of their elements are read by no rank, since nobody else has these values."""
        if not self.is_granted:
            return
        kept = {id(shard.tensor) for shard in store.shards.values()}
        read = {store.graph.tensors[i].name for i in store.pieces if store.is_read_whole(i)}
        state = state_of(self._model).items()
        freed = {p for name, p in state if isinstance(p, nn.Parameter) and id(p) not in kept and name in read}
        if freed:
            _replace(self._model, {parameter: torch.device("meta") for parameter in freed})
            for parameter in freed:
                parameter.data = parameter.new_empty(0)  # an optimizer may still have it
            _moved.add(self._model)
            _explain(self._model, place)
        for tensor in state_of(self._model).values():
            if not tensor.is_meta and tensor.device != place:
                tensor.data = tensor.data.to(place)


def check_whole(model: nn.Module) -> None:
    """Raise RankError if an earlier Parallel has freed some of a model's parameters."""
    if model in _moved and is_meta(model):
        raise RankError(
            "an earlier parallelize() cut this model's parameters between ranks; call model.load_state_dict() with a "
            "whole state first, such as parallel.state_dict(), or make the model anew"
        )


def tensor_names(model: nn.Module) -> list[str]:
    """The names in a model's state dict."""
    return list(state_dict_of(model))


def state_dict_of(model: nn.Module) -> dict[str, torch.Tensor]:
    """A model's state dict, in which some tensors may be on the meta device."""
    with _asking():
        return model.state_dict()


@contextmanager
def _asking() -> Iterator[None]:
    _asked.by_us = True
    try:
        yield
    finally:
        _asked.by_us = False


def _replace(model: nn.Module, places: Mapping[nn.Parameter, torch.device]) -> None:
    """Put parameters of the same shapes elsewhere in place of some, with whatever is in their memory."""
    made = {old: nn.Parameter(torch.empty_like(old, device=to), old.requires_grad) for old, to in places.items()}
    for module in model.modules():
        for name, parameter in module._parameters.items():
            if parameter in made:
                module._parameters[name] = made[parameter]


def _explain(model: nn.Module, place: torch.device) -> None:
    """Make `state_dict` of a model refuse, until `load_state_dict` has made it whole."""

    def refuse(module: nn.Module, *_: Any) -> None:
        if not getattr(_asked, "by_us", False):
            raise RankError(
                "this model's parameters are cut between ranks; parallel.state_dict(), called on every rank, has them "
                "whole"
            )

    def restore(module: nn.Module, *_: Any) -> None:
        _replace(module, {parameter: place for parameter in module.parameters() if parameter.is_meta})
        for hook in hooks:
            hook.remove()

    hooks = [
        model.register_state_dict_pre_hook(refuse),  # type: ignore[no-untyped-call]
        model.register_load_state_dict_pre_hook(restore),  # type: ignore[no-untyped-call]
    ]
