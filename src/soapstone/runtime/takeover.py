"""What becomes of the user's own model.

A parameter or buffer that a rank keeps whole and unsharded is the user's own tensor, and is trained in place. Other
parameters move to the meta device, which frees their memory. The model's `state_dict` then raises RankError, and
`load_state_dict` makes the model whole again. A model serves one Parallel at a time; others get copies.
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
        """Free the parameters that this rank does not keep whole, and the buffers that others update; put the rest of
        the model on the rank's device. Those stay of which some elements are read by no rank, since nobody else has
        these values."""
        if not self.is_granted:
            return
        kept = {id(shard.tensor) for shard in store.shards.values()}
        read = {store.graph.tensors[i].name for i in store.pieces if store.is_read_whole(i)}
        updated = {store.graph.tensors[operand.tensor].name for op in store.graph.ops for operand in op.updates}
        freed = {
            tensor: torch.empty_like(tensor, device="meta")
            for name, tensor in state_of(self._model).items()
            if id(tensor) not in kept and name in read and (isinstance(tensor, nn.Parameter) or name in updated)
        }
        if freed:
            _Freed(place).replace(self._model, freed)
            for tensor in freed:
                tensor.data = tensor.new_empty(0)  # an optimizer may still have it
        for tensor in state_of(self._model).values():
            if not tensor.is_meta and tensor.device != place:
                tensor.data = tensor.data.to(place)


def check_whole(model: nn.Module) -> None:
    """Raise RankError if an earlier Parallel has freed some of a model's parameters."""
    if _has_freed(model):
        raise RankError(
            "an earlier parallelize() cut this model's parameters between ranks; call model.load_state_dict() with a "
            "whole state first, such as parallel.state_dict(), or make the model anew"
        )


class _Freed:
    """What modules with freed tensors do, as hooks of theirs and of the modules around them: `state_dict` refuses while
    a tensor is missing, and `load_state_dict` gives memory to those that it has values for."""

    def __init__(self, place: torch.device) -> None:
        self._place = place
        self._made: dict[torch.Tensor, torch.Tensor] = {}  # so that tied parameters stay tied
        self._models: WeakSet[nn.Module] = WeakSet()

    def replace(self, model: nn.Module, freed: Mapping[torch.Tensor, torch.Tensor]) -> None:
        twins = {old: _like(old, new) for old, new in freed.items()}
        for module in model.modules():
            for tensors in _tensors_of(module):
                tensors.update({name: twins[each] for name, each in tensors.items() if each in twins})
        for module in model.modules():
            if any(tensor.is_meta for tensor in (*module.parameters(), *module.buffers())):
                module.register_state_dict_pre_hook(self.refuse)  # type: ignore[no-untyped-call]
                module.register_load_state_dict_pre_hook(self.restore)  # type: ignore[no-untyped-call]
                self._models.add(module)

    def refuse(self, module: nn.Module, *_: Any) -> None:
        if not getattr(_asked, "by_us", False) and is_meta(module):
            raise RankError(_CUT)

    def restore(self, module: nn.Module, state: Mapping[str, Any], prefix: str, *_: Any) -> None:
        for tensors in _tensors_of(module):
            for name, tensor in tensors.items():
                given = state.get(prefix + name)
                if tensor is None or not tensor.is_meta or getattr(given, "shape", None) != tensor.shape:
                    continue
                if tensor not in self._made:
                    self._made[tensor] = _like(tensor, torch.empty_like(tensor, device=self._place))
                tensors[name] = self._made[tensor]

    def __deepcopy__(self, memo: dict[int, Any]) -> _Freed:
        twin = _Freed(self._place)
        for module in self._models:
            if id(module) in memo:
                twin._models.add(memo[id(module)])
        return twin

    def __reduce__(self) -> Any:
        if any(map(is_meta, self._models)):
            raise RankError(_CUT)
        return _Freed, (self._place,)


_CUT = (
    "this model's parameters are cut between ranks or kept by others; parallel.state_dict(), called on every rank, has "
    "them whole; load that state with model.load_state_dict() first"
)


def _tensors_of(module: nn.Module) -> tuple[dict[str, Any], dict[str, Any]]:
    return module._parameters, module._buffers


def _like(tensor: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    return nn.Parameter(values, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else values


def _has_freed(model: nn.Module) -> bool:
    hooks = model._state_dict_pre_hooks.values()
    return is_meta(model) and any(isinstance(getattr(hook, "__self__", None), _Freed) for hook in hooks)


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
