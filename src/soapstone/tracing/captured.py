"""Plain Python values that a captured model has read: numbers, flags and texts that are frozen in its graph."""

from __future__ import annotations

import dis
import weakref
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import CellType
from typing import Any

from ..graph import OperatorGraph
from .observe import Observer
from .pystate import Place

Plain = bool | int | float | str | None
Scalar = Plain | tuple[Plain, ...]
_FROZEN = frozenset({bool, int, float, str, type(None)})


@dataclass(frozen=True)
class Captured:
    """`values` by path, of the model, its classes and its loss; `globals` are places in modules, with the values there;
    `trained` says which parameters had requires_grad."""

    values: dict[str, Scalar] = field(default_factory=dict)
    globals: tuple[tuple[Place, Scalar], ...] = ()
    trained: dict[str, bool] = field(default_factory=dict)

    @classmethod
    def by(cls, observer: Observer) -> Captured:
        """Those values that code which ran mentions."""
        values: dict[str, Scalar] = {}
        places = []
        entries = observer.before.entries
        for path, (_, holder, key, value) in entries.items():
            if not _is_plain(value) or isinstance(holder, tuple):
                continue
            if path.startswith("the global"):
                if "[" not in path and _loaded(observer, holder, key):
                    places.append(((path, holder, key), value))
            elif _mentioned(observer, path, holder, key) and not (key == "training" and _has_no_mode(entries, path)):
                values[path] = value
        return cls(values, tuple(places))


def _is_plain(value: Any) -> bool:
    return type(value) in _FROZEN or (type(value) is tuple and all(type(item) in _FROZEN for item in value))


def _has_no_mode(entries: Mapping[str, tuple[Any, ...]], path: str) -> bool:
    """Whether the flag is that of a module of torch's that does the same in train and eval mode."""
    owner = type(entries.get(path.rpartition(".")[0], (None,) * 4)[3])
    return owner.__module__.startswith("torch.nn.") and "training" not in owner.forward.__code__.co_names


def _mentioned(observer: Observer, path: str, holder: Any, key: Any) -> bool:
    if isinstance(holder, CellType):
        return any(f"variable {name!r} " in path for name in observer.free)
    if isinstance(key, str):
        return key in observer.names
    return path.partition("[")[0].rpartition(".")[2] in observer.names


def _loaded(observer: Observer, space: Any, name: Any) -> bool:
    """Whether code reads a global: by itself where it is the code's own, by name where it is another module's."""
    own = [code for code, known in observer.codes.items() if known is space and name in code.co_names]
    if not own:
        return all(known is not space for known in observer.codes.values())
    return any(
        step.argval == name and step.opname in ("LOAD_GLOBAL", "LOAD_NAME")
        for code in own
        for step in dis.get_instructions(code)
    )


_KNOWN: dict[int, tuple[weakref.ref[OperatorGraph], Captured]] = {}


def remember(graph: OperatorGraph, captured: Captured) -> None:
    """Keep what a graph was captured with, as long as there is the graph."""
    number = id(graph)
    _KNOWN[number] = weakref.ref(graph, lambda _: _KNOWN.pop(number, None)), captured


def recalled(graph: OperatorGraph) -> Captured:
    """What a graph was captured with in this process; nothing for one that comes from elsewhere."""
    found = _KNOWN.get(id(graph))
    return found[1] if found is not None and found[0]() is graph else Captured()
