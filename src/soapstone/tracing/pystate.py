"""Takes snapshots of the Python state that a forward can reach, compares two of them, and restores one.

A snapshot maps paths ("layers.0.count", "seen[2]") to tokens, which change if the value there does: the value of a
number or string, the identity of a tensor, the type and length of a container, whose items have paths of their own. The
attributes of plain objects are followed as those of modules are. Objects of torch and of the standard library are not
followed, except for those below.
"""

from __future__ import annotations

import functools
import itertools
import random
import sys
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from types import CellType, FunctionType, GeneratorType, MethodType, ModuleType, SimpleNamespace
from typing import Any

import torch
from torch import nn

ABSENT: Any = type("Absent", (), {"__repr__": lambda self: "absent"})()
SCALARS = frozenset({bool, int, float, complex, str, bytes, type(None)})
CACHED = type(functools.lru_cache(lambda: None))
_PLAIN = SCALARS | {torch.dtype, torch.device, torch.Size, torch.layout, torch.memory_format, range, slice}
_FOREIGN = frozenset({*sys.stdlib_module_names, "torch", "numpy"} - {"__main__"})
_STANDARD = frozenset({*vars(nn.Module()), "_flat_weights", "_flat_weight_refs"} - {"training"})  # hooks; of nn.RNN's
_LARGE = 5_000  # items of a container whose items are compared by identity alone
_MOST_OBJECTS = 200_000
Token = tuple[object, ...]
Key = object
Place = tuple[str, Any, Any]


def is_foreign(module: object) -> bool:
    """Whether the name of a module is that of a module in torch, numpy or the standard library."""
    return not isinstance(module, str) or module.partition(".")[0] in _FOREIGN


@dataclass(frozen=True, slots=True)
class Change:
    """A place whose value changed: `holder[key]`, or the contents of `value`, the value before the change."""

    path: str
    holder: Any
    key: Any
    value: Any
    now: Any

    @property
    def is_plain(self) -> bool:
        """Whether the value before and the value now are plain, in a namespace of the model."""
        are_plain = type(self.value) in SCALARS and type(self.now) in SCALARS
        return are_plain and isinstance(self.holder, dict) and self.path.startswith(".")

    def repeat(self, snapshot: Snapshot) -> None:
        """Make the same change at the places of another snapshot."""
        _, holder, key, _ = snapshot.entries[self.path]
        put(holder, key, self.now)

    def shallow(self) -> tuple[object, ...]:
        """The present value and its items, to be compared by `same`."""
        found = held(self.holder, self.key)
        inside: tuple[object, ...] = ()
        if found is self.value:
            inside = _items(found)
        return (found, len(inside), *inside)


class Roots:
    """The places that a snapshot starts from, in order: (path, holder, key). The value there is `held(holder, key)`; if
    the key is ..., the holder is a class, and all of its attributes are meant."""

    def __init__(self) -> None:
        self.places: list[Place] = []
        self._known: set[tuple[int, Key]] = set()

    def add(self, path: str, holder: Any, key: Any) -> Place | None:
        """Add a place, and return it if it was not known yet."""
        if (id(holder), key) in self._known:
            return None
        self._known.add((id(holder), key))
        self.places.append((path, holder, key))
        return self.places[-1]


class Snapshot:
    """The state that is reachable from some roots. More places may be added as long as nothing there has changed."""

    def __init__(self, roots: Roots, copies: bool = False) -> None:
        self._copies = copies  # of the numbers in small tensors that are neither parameters nor buffers
        self.entries: dict[str, tuple[Token, Any, Any, Any]] = {}
        self._seen: dict[int, tuple[str, object]] = {}
        self._undo: list[Callable[[], None]] = []
        self.caches: dict[int, tuple[Any, int]] = {}
        for path, holder, key in roots.places:
            self.look(path, holder, key)

    def look(self, path: str, holder: Any, key: Any) -> None:
        if key is ...:
            self._class(path, holder)
            return
        value = held(holder, key)
        if isinstance(holder, CellType) or (isinstance(holder, dict) and id(holder) not in self._seen):
            self._undo.append(lambda: put(holder, key, value))
        self._visit(path, value, holder, key)

    def changes(self, later: Snapshot) -> list[Change]:
        """The places that differ in a later snapshot, each before the places inside it."""
        found = []
        nothing: tuple[Token, Any, Any, Any] = ((ABSENT,), None, None, ABSENT)
        for path in (*self.entries, *(path for path in later.entries if path not in self.entries)):
            before, after = self.entries.get(path, nothing), later.entries.get(path, nothing)
            if before[0] != after[0]:
                holder, key = before[1:3] if path in self.entries else after[1:3]
                found.append(Change(path, holder, key, before[3], after[3]))
        return found

    def restore(self) -> None:
        """Restore the values of this snapshot."""
        for undo in reversed(self._undo):
            undo()
        for cache, misses in self.caches.values():  # what was kept since may be tensors of the export's
            if cache.cache_info().misses != misses:
                cache.cache_clear()

    def _visit(self, path: str, value: Any, holder: Any, key: Any) -> None:
        self.entries[path] = (self._token(path, value), holder, key, value)

    def _token(self, path: str, value: Any) -> Token:
        kind = type(value)
        if kind in _PLAIN:
            return (kind, value) if value == value else (kind, "nan")
        if isinstance(value, torch.Tensor):
            if self._copies and type(value) is torch.Tensor and value.device.type == "cpu" and value.numel() <= _LARGE:
                self._undo.append(functools.partial(_put_numbers, value, value.detach().clone(), value._version))
            return ("tensor", id(value), value._version)
        if isinstance(value, Enum | ModuleType) or value is ABSENT:
            return ("one", id(value))
        known = self._seen.get(id(value))
        if known is not None:
            return ("seen", known[0])
        if len(self._seen) >= _MOST_OBJECTS:
            return ("unseen",)
        self._seen[id(value)] = path, value
        if isinstance(value, nn.Module):
            return self._module(path, value)
        if isinstance(value, dict | list | tuple | set | frozenset | deque):
            return self._container(path, value)
        if isinstance(value, FunctionType | MethodType | functools.partial | CACHED | staticmethod | classmethod):
            return self._callable(path, value)
        if isinstance(value, type):
            return ("class", id(value))
        return _state_of(value, self._undo) or self._object(path, value)

    def _class(self, path: str, cls: type) -> None:
        kept = {name: value for name, value in vars(cls).items() if not name.startswith("__")}

        def undo() -> None:
            for name in {*kept, *(name for name in vars(cls) if not name.startswith("__"))}:
                put(cls, name, kept.get(name, ABSENT))

        self._undo.append(undo)
        for name, value in kept.items():
            self._visit(f"{path}.{name}", value, cls, name)

    def _module(self, path: str, module: nn.Module) -> Token:
        self._undo.append(_undone(module.__dict__))
        for name, value in list(module.__dict__.items()):
            if name not in _STANDARD:
                self._visit(f"{path}.{name}", value, module.__dict__, name)
            elif isinstance(value, dict):  # parameters, modules, hooks
                self._undo.append(functools.partial(_refill, value, dict(dict.items(value))))
        for held_tensors in (module._parameters, module._buffers):
            for name, tensor in held_tensors.items():  # whose numbers may change
                self.entries[f"{path}.{name}"] = ("tensor", id(tensor)), held_tensors, name, tensor
        for name, child in module._modules.items():
            self._visit(f"{path}.{name}", child, module._modules, name)
        return ("module", type(module), *module._modules)

    def _container(self, path: str, value: Any) -> Token:
        if not isinstance(value, tuple | frozenset):
            self._undo.append(_undone(value))
        if isinstance(value, set | frozenset) or len(value) > _LARGE:
            return (type(value), len(value), *map(id, _items(value)))
        pairs = dict.items(value) if isinstance(value, dict) else enumerate(value)
        for number, (key, item) in enumerate(list(pairs)):
            named = key if type(key) in SCALARS else f"item {number}"
            self._visit(f"{path}[{named!r}]", item, value, key)
        return (type(value), len(value))

    def _callable(self, path: str, value: Any) -> Token:
        if isinstance(value, CACHED):
            self.caches[id(value)] = value, value.cache_info().misses
            return ("cache", id(value))
        if not isinstance(value, FunctionType):
            for name in ("__self__", "__func__", "func", "args", "keywords"):
                inside = getattr(value, name, None)
                if inside is not None:
                    self._visit(f"{path}.{name}", inside, value, name)
            return (type(value),)
        if is_foreign(value.__globals__.get("__name__")):
            return ("function", id(value))
        for name, cell in zip(value.__code__.co_freevars, value.__closure__ or ()):
            if id(cell) not in self._seen:
                self._seen[id(cell)] = path, cell
                self.look(f"the variable {name!r} around {value.__qualname__}", cell, None)
        for number, default in enumerate(value.__defaults__ or ()):
            self._visit(f"a default of {value.__qualname__}[{number}]", default, value.__defaults__, number)
        for name, default in (value.__kwdefaults__ or {}).items():
            self._visit(f"a default of {value.__qualname__}[{name!r}]", default, value.__kwdefaults__, name)
        if value.__dict__:
            self._undo.append(_undone(value.__dict__))
        for name, inside in list(value.__dict__.items()):
            if name != "__wrapped__":
                self._visit(f"{value.__qualname__}.{name}", inside, value.__dict__, name)
        return ("function", id(value.__code__))

    def _object(self, path: str, value: Any) -> Token:
        if is_foreign(type(value).__module__) and not isinstance(value, SimpleNamespace):
            return ("opaque", type(value))
        attributes = getattr(value, "__dict__", None)
        if isinstance(attributes, dict):
            self._undo.append(_undone(attributes))
            for name, inside in list(attributes.items()):
                self._visit(f"{path}.{name}", inside, attributes, name)
        for name, inside in _slots(value):
            self._undo.append(functools.partial(_put_slot, value, name, inside))
            self._visit(f"{path}.{name}", inside, value, name)
        return ("object", type(value))


def described(path: str) -> str:
    """The name of a place in a message: 'layers.0.count' in the model; other paths are names already."""
    return repr(path.lstrip(".")) if path.startswith(".") else path


def held(holder: Any, key: Any) -> Any:
    """The value at a place, or ABSENT."""
    try:
        if isinstance(holder, CellType):
            return holder.cell_contents
        if isinstance(holder, type):
            return holder.__dict__.get(key, ABSENT)
        if isinstance(holder, dict):  # one of a kind of its own may make what it is asked for
            return dict.__getitem__(holder, key)
        return holder[key] if isinstance(holder, list | tuple | deque) else getattr(holder, key, ABSENT)
    except (LookupError, ValueError):
        return ABSENT


def put(holder: Any, key: Any, value: Any) -> None:
    """Set the value at a place of a namespace, a class or a cell, unless it is there already."""
    if held(holder, key) is value:
        return
    if isinstance(holder, CellType):
        holder.cell_contents = value
    elif isinstance(holder, type):
        delattr(holder, key) if value is ABSENT else setattr(holder, key, value)
    elif value is ABSENT:
        del holder[key]
    else:
        holder[key] = value


def _put_numbers(tensor: torch.Tensor, numbers: torch.Tensor, version: int) -> None:
    if tensor._version != version:
        with torch.no_grad():
            tensor.copy_(numbers)


def _put_slot(owner: Any, name: str, value: Any) -> None:
    if getattr(owner, name, ABSENT) is not value:
        object.__setattr__(owner, name, value)


def _slots(value: Any) -> Iterator[tuple[str, Any]]:
    for cls in type(value).__mro__:
        names = cls.__dict__.get("__slots__", ())
        for name in (names,) if isinstance(names, str) else names:
            if name not in ("__dict__", "__weakref__") and hasattr(value, name):
                yield name, getattr(value, name)


def _items(value: Any) -> tuple[object, ...]:
    if isinstance(value, dict):
        return (*dict.keys(value), *dict.values(value))
    if isinstance(value, list | tuple | set | frozenset | deque):
        return tuple(value)
    if isinstance(value, torch.Tensor):
        return (value._version,)
    token = _state_of(value, [])
    return () if token is None else (hash(token),)


def _undone(holder: Any) -> Callable[[], None]:
    """A function that restores a container's items."""
    if isinstance(holder, dict):
        return functools.partial(_refill, holder, dict(dict.items(holder)))
    items = tuple(holder)

    def undo() -> None:
        if not same(items, tuple(holder)):
            holder.clear()
            holder.update(items) if isinstance(holder, set) else holder.extend(items)

    return undo


def _refill(holder: dict[Any, Any], items: dict[Any, Any]) -> None:
    if not same(_items(items), _items(holder)):
        base = OrderedDict if isinstance(holder, OrderedDict) else dict
        base.clear(holder)
        for key, value in items.items():
            base.__setitem__(holder, key, value)


def same(before: tuple[object, ...], after: tuple[object, ...]) -> bool:
    return len(before) == len(after) and all(a is b or (type(a) is int and a == b) for a, b in zip(before, after))


def _state_of(value: Any, undo: list[Callable[[], None]]) -> Token | None:
    """The inner state of random generators, arrays and iterators; None for anything else."""
    if isinstance(value, random.Random):
        state = value.getstate()
        undo.append(lambda: value.setstate(state))
        return ("random", state)
    if isinstance(value, GeneratorType):
        return ("generator", value.gi_frame.f_lasti if value.gi_frame else -1, *_counts(value))
    if isinstance(value, itertools.count):
        return ("count", repr(value))
    if hasattr(value, "__length_hint__"):
        return ("iterator", value.__length_hint__())
    numpy = sys.modules.get("numpy")
    if numpy is None:
        return None
    if isinstance(value, numpy.ndarray) and value.nbytes <= 2**20 and not value.dtype.hasobject:
        kept = value.copy()
        undo.append(lambda: numpy.copyto(value, kept) if value.flags.writeable else None)
        return ("array", value.dtype, value.shape, value.tobytes())
    if isinstance(value, numpy.generic):
        return ("number", value.dtype, value.tobytes())
    if isinstance(value, numpy.random.Generator):
        bits, kept_bits = value.bit_generator, value.bit_generator.state
        undo.append(lambda: setattr(bits, "state", kept_bits))
        return ("random", repr(kept_bits))
    if isinstance(value, numpy.random.RandomState):
        kept_state = value.get_state()
        undo.append(lambda: value.set_state(kept_state))
        return ("random", repr(kept_state))
    return None


def _counts(value: GeneratorType[Any, Any, Any]) -> Iterator[object]:
    """The local variables of a generator that are plain values."""
    for name, local in (value.gi_frame.f_locals if value.gi_frame else {}).items():
        if type(local) in SCALARS:
            yield name, local
