"""The clocks that a forward may read, and a way to run it at another time."""

from __future__ import annotations

import datetime
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

_SHIFT = 1_000_001  # seconds: some days, and an odd number, so that a branch on even seconds goes the other way
_NAMES = [
    name + unit for name in ("time", "monotonic", "perf_counter", "process_time", "thread_time") for unit in ("", "_ns")
]
CLOCKS = frozenset(getattr(time, name) for name in _NAMES) | {
    datetime.datetime.now,
    datetime.datetime.utcnow,
    datetime.datetime.today,
    datetime.date.today,
}


@contextmanager
def at_another_time(spaces: Iterable[dict[str, Any]]) -> Iterator[None]:
    """Inside the context, all clocks that these modules have as globals are shifted by the same time. The clocks of
    other modules stay right."""
    right = []
    try:
        for space in {id(space): space for space in spaces}.values():
            for name, value in list(space.items()):
                if (shifted := _shifted(value)) is not None:
                    right.append((space, name, value))
                    space[name] = shifted
        yield
    finally:
        for space, name, value in right:
            space[name] = value


def _shifted(value: Any) -> Any:
    """A clock, or what has clocks; None for anything else."""
    if value is time:
        return _module(time, {name: _late(getattr(time, name)) for name in _NAMES})
    if value is datetime:
        return _module(datetime, {"datetime": _LateDatetime})
    if value is datetime.datetime:
        return _LateDatetime
    is_one = type(value) is type(time.time) and value in CLOCKS and value.__module__ == "time"
    return _late(value) if is_one else None


def _module(module: ModuleType, changed: dict[str, Any]) -> ModuleType:
    found = ModuleType(module.__name__)
    vars(found).update(vars(module) | changed)
    return found


def _late(clock: Callable[[], float]) -> Callable[[], float]:
    shift = _SHIFT * 10**9 if clock.__name__.endswith("_ns") else _SHIFT
    return lambda: clock() + shift


class _LateDatetime(datetime.datetime):
    @classmethod
    def now(cls, tz: datetime.tzinfo | None = None) -> Any:
        return datetime.datetime.now(tz) + datetime.timedelta(seconds=_SHIFT)

    @classmethod
    def utcnow(cls) -> Any:
        return datetime.datetime.utcnow() + datetime.timedelta(seconds=_SHIFT)

    @classmethod
    def today(cls) -> Any:
        return cls.now()
