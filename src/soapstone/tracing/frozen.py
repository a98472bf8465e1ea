"""Values that a user changes after the capture: what plain PyTorch would heed in the next step, and a graph cannot.

The check compares the values of each object at once, by identity first, and takes some microseconds for a small model.
"""

from __future__ import annotations

from collections import defaultdict
from operator import itemgetter
from typing import Any

from ..errors import CaptureError
from .captured import Captured, Scalar
from .locating import described
from .observe import own_roots
from .pystate import Place, Snapshot, held
from .workload import Workload

_ANEW = (
    "but was {} when the model was captured, which its graph goes on with; set it back, or capture and parallelize anew"
)


class FrozenValues:
    """Those of a workload. Raises CaptureError where they are not what they were at the capture already."""

    def __init__(self, work: Workload, captured: Captured) -> None:
        places: list[tuple[Place, Scalar]] = list(captured.globals)
        entries = Snapshot(own_roots(work)).entries if captured.values else {}
        for path, value in captured.values.items():
            if path in entries:
                _, holder, key, _ = entries[path]
                places.append(((path, holder, key), value))
        self._all = _Group(places)
        self._but_mode = _Group([place for place in places if place[0][2] != "training"])
        parameters = {name: p for name, p in work.model.named_parameters() if name in captured.trained}
        self._parameters = tuple(parameters.items())
        self._trained = [captured.trained[name] for name in parameters]
        self.check()

    def check(self, *, mode: bool = True) -> None:
        """Raise CaptureError for a value that has changed since; without `mode`, none of train and eval mode."""
        (self._all if mode else self._but_mode).check()
        if [parameter.requires_grad for _, parameter in self._parameters] != self._trained:
            for (name, parameter), trained in zip(self._parameters, self._trained):
                if parameter.requires_grad != trained:
                    now = f"requires_grad of {name!r} is {parameter.requires_grad}"
                    raise CaptureError(f"{now}, {_ANEW.format(trained)}")


class _Group:
    """Places with the values that they should have, read by holder."""

    def __init__(self, places: list[tuple[Place, Scalar]]) -> None:
        self._places = places
        by_holder: dict[int, tuple[Any, list[Any], list[Scalar]]] = defaultdict(lambda: (None, [], []))
        self._others = []
        for (path, holder, key), value in places:
            if isinstance(holder, dict | list | tuple):
                _, keys, values = by_holder[id(holder)]
                by_holder[id(holder)] = holder, [*keys, key], [*values, value]
            else:
                self._others.append(((path, holder, key), value))
        self._read = [
            (itemgetter(*keys), holder, tuple(values) if len(values) > 1 else values[0])
            for holder, keys, values in by_holder.values()
        ]

    def check(self) -> None:
        try:
            if not self._others and all([read(it) == values for read, it, values in self._read]):  # noqa: C419  faster
                return
        except LookupError:  # something is gone
            pass
        for (path, holder, key), value in self._places:
            now = held(holder, key)
            if now is not value and now != value:
                raise CaptureError(f"{described(path)} is {now!r}, {_ANEW.format(repr(value))}")
