"""Plain Python values that a forward reads: numbers, flags and strings, which are constants in its graph.

`graph.frozen` has them by path, and they are saved and cached with the graph. Each step compares them with the values
in the model: if a user changes one, plain PyTorch would use the new value, and a graph cannot.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Mapping
from operator import attrgetter, getitem
from types import CellType
from typing import Any

from ..errors import CaptureError
from ..graph import OperatorGraph
from .observe import Observer, loaded_globals, own_roots
from .pystate import Place, Snapshot, described, held
from .workload import Workload

Scalar = bool | int | float | str | tuple[Any, ...] | None
_FROZEN = frozenset({bool, int, float, str, type(None)})
_VARIABLE = "the environment variable {!r}"
_TRAINS = "requires_grad of {!r}"
_NAMED = re.compile(r"the (?:global '(?P<name>\w+)' of (?P<module>.+)|environment variable '(?P<variable>.+)')")
_ANEW = (
    "but was {!r} when the model was captured, and its graph still uses that; set it back, or capture and parallelize "
    "anew"
)


def values_read(observer: Observer, work: Workload) -> dict[str, Scalar]:
    """By path, the plain values that the observed code mentions, and the `requires_grad` of each parameter."""
    entries = observer.before.entries
    values: dict[str, Scalar] = {
        path: value
        for path, (_, holder, key, value) in entries.items()
        if _is_plain(value) and not isinstance(holder, tuple) and _is_read(observer, entries, path, holder, key)
    }
    values |= {_VARIABLE.format(name): value for name, value in observer.reads.variables.items()}
    return values | {_TRAINS.format(name): p.requires_grad for name, p in work.model.named_parameters()}


def _is_plain(value: Any) -> bool:
    if type(value) is tuple:
        return all(type(item) in _FROZEN and item == item for item in value)
    return type(value) in _FROZEN and value == value


def _is_read(observer: Observer, entries: Mapping[str, tuple[Any, ...]], path: str, holder: Any, key: Any) -> bool:
    if path.startswith("the global"):
        return "[" not in path and _is_loaded(observer, holder, key)
    if isinstance(holder, CellType):
        return any(f"variable {name!r} " in path for name in observer.free)
    if key == "training":
        owner = type(entries.get(path.rpartition(".")[0], (None,) * 4)[3])
        if owner.__module__.startswith("torch.nn.") and "training" not in owner.forward.__code__.co_names:
            return False  # this layer computes the same in train and eval mode
    name = key if isinstance(key, str) else path.partition("[")[0].rpartition(".")[2]
    return name in observer.names


def _is_loaded(observer: Observer, space: Any, name: Any) -> bool:
    """Whether observed code of a module reads its global `name`. True for modules of which no code was observed."""
    codes = [code for code, known in observer.codes.items() if known is space]
    return not codes or any(name in loaded_globals(code) for code in codes)


class FrozenValues:
    """The frozen values of a graph, and their places in a workload's model. `again` captures the graph anew;
    `mode=False` leaves out the train and eval mode of layers. Raises CaptureError if a value differs and the graph
    does, too: by its name alone, the `dtype` that forward reads may be a tensor's or a config's."""

    def __init__(
        self, work: Workload, graph: OperatorGraph, again: Callable[[], OperatorGraph], *, mode: bool = True
    ) -> None:
        self._graph, self._again = graph, again
        entries = Snapshot(own_roots(work)).entries if graph.frozen else {}
        parameters = {_TRAINS.format(name): (p, "requires_grad") for name, p in work.model.named_parameters()}
        found = []
        for path, value in graph.frozen.items():
            place = _named(path) or parameters.get(path) or (entries[path][1:3] if path in entries else None)
            if place is not None and (mode or place[1] != "training"):
                found.append(((path, *place), tuple(value) if isinstance(value, list) else value))
        self._values = _Values(found)
        self.check()

    def check(self) -> None:
        """Raise CaptureError if a value has changed since, and with it the graph."""
        difference = self._values.difference()
        if difference is None:
            return
        if not self._is_the_same_graph():
            raise CaptureError(difference)
        self._values = self._values.now()

    def _is_the_same_graph(self) -> bool:
        try:
            return self._again().fingerprint == self._graph.fingerprint
        except CaptureError:
            return False


def _named(path: str) -> tuple[Any, Any] | None:
    """The holder and key of a global or an environment variable; None for other paths, and for modules that this
    process has not loaded."""
    match = _NAMED.fullmatch(path)
    if match is None:
        return None
    if match["variable"] is not None:
        return os.environ, match["variable"]
    space = vars(sys.modules.get(match["module"], sys))
    return (space, match["name"]) if match["name"] in space else None


class _Values:
    """Places with the values that they should have. A check reads them in C, since each step makes one."""

    def __init__(self, places: list[tuple[Place, Scalar]]) -> None:
        self._places = places
        self._reads: list[tuple[Callable[[], list[Any]], list[Scalar]]] = []
        groups: dict[str, tuple[list[Any], list[Any], list[Scalar]]] = {}
        for (_, holder, key), value in places:
            if isinstance(holder, type):
                holder = vars(holder)
            way, key = _way(holder, key)
            for of_all, own in zip(groups.setdefault(way, ([], [], [])), (holder, key, value)):
                of_all.append(own)
        for way, (holders, keys, values) in groups.items():
            self._reads.append((_reader(way, holders, keys), values))

    def difference(self) -> str | None:
        """What to say of the first value that differs."""
        try:
            if all([read() == values for read, values in self._reads]):  # noqa: C419  faster
                return None
        except (LookupError, ValueError, AttributeError, RuntimeError):  # a place is gone, or has a tensor
            pass
        for place, value in self._places:
            now = _held(place)
            if now is not value and (not _is_plain(now) or now != value):
                return f"{described(place[0])} is {now!r}, {_ANEW.format(value)}"
        return None

    def now(self) -> _Values:
        """The same places with what they have now; those that no longer have a plain value are left out."""
        found = [(place, _held(place)) for place, _ in self._places]
        return _Values([(place, value) for place, value in found if _is_plain(value)])


def _held(place: Place) -> Any:
    _, holder, key = place
    return os.environ.get(key) if holder is os.environ else held(holder, key)


def _way(holder: Any, key: Any) -> tuple[str, Any]:
    if holder is os.environ:
        return "variable", key
    if isinstance(holder, CellType):
        return "cell_contents", key
    if key == "requires_grad":
        return "requires_grad", key
    if isinstance(holder, dict):  # one of a kind of its own may make what it is asked for
        return "dict", key
    return ("item", key) if hasattr(holder, "__getitem__") else ("attribute", key)


def _reader(way: str, holders: list[Any], keys: list[Any]) -> Callable[[], list[Any]]:
    if way == "variable":
        return lambda: list(map(os.environ.get, keys))
    if way == "dict":
        return lambda: list(map(dict.__getitem__, holders, keys))
    if way == "item":
        return lambda: list(map(getitem, holders, keys))
    if way == "attribute":
        return lambda: list(map(getattr, holders, keys))
    get = attrgetter(way)
    return lambda: list(map(get, holders))
