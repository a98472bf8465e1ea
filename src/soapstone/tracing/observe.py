"""Observes which Python code runs in a forward, through sys.setprofile, which is off inside torch.

When a function starts for the first time, the globals and classes that it mentions are added to the state that is
compared before and after the call. That is early enough: no function has changed them before it starts.

Globals are looked at in the user's own files and in packages that the model's classes or the loss come from. State of
other installed packages may change for reasons of their own: counters, caches, warnings given once. The interpreter may
also call code at any time, such as callbacks of the garbage collector; that is not part of forward.
"""

from __future__ import annotations

import dis
import gc
import signal
import sys
import traceback
import weakref
from collections.abc import Iterator
from contextlib import ExitStack
from functools import cache
from types import CodeType, FrameType, ModuleType
from typing import Any

from torch import nn
from torch.overrides import TorchFunctionMode

from ..surroundings import Reads, is_installed, noted_variables
from .clocks import CLOCKS
from .pystate import Place, Roots, Snapshot, is_foreign
from .users_code import Line
from .workload import Workload

_OURS = __name__.rpartition(".")[0]


def own_roots(work: Workload) -> Roots:
    """The model, its classes, the loss, and the example batch."""
    roots = Roots()
    roots.add("", work, "model")
    for cls in {type(module): None for module in work.model.modules()}:
        add_class(roots, cls)
    roots.add("the loss", work, "loss")
    for name in ("inputs", "kwargs", "targets"):
        roots.add(name, work, name)
    return roots


def add_class(roots: Roots, cls: type) -> list[Place | None]:
    """Add the attributes of a class and of its bases, and return the places that were not known yet."""
    bases = (base for base in cls.__mro__ if base is not nn.Module and not is_foreign(base.__module__))
    return [roots.add(base.__qualname__, base, ...) for base in bases]


class Observer(TorchFunctionMode):
    """A context around one call or several. It records the `names` that the executed code mentions, the first line that
    read a clock, the environment variables that the code `reads`, and the places of state in `roots`, with a snapshot
    from `before`."""

    def __init__(self, work: Workload) -> None:
        super().__init__()
        self.roots, self.names, self.free = own_roots(work), set[str](), set[str]()
        self.codes: dict[CodeType, dict[str, Any]] = {}  # the user's, and their globals
        self.clock: Line | None = None
        self.reads, self._noting = Reads(), ExitStack()
        self._packages = {_package(type(module).__module__) for module in work.model.modules()}
        self._packages.add(_package(getattr(work.loss, "__module__", None)))
        self._callbacks = _callbacks()
        self._started: set[CodeType] = set()
        self._previous: Any = None
        self.before = Snapshot(self.roots)

    def __enter__(self) -> Observer:
        super().__enter__()  # type: ignore[no-untyped-call]
        self._noting.enter_context(noted_variables(self.reads))
        self._previous = sys.getprofile()
        if self._previous is None:  # another profiler stays active, and then globals are not observed
            sys.setprofile(self._event)
        return self

    def __exit__(self, *error: Any) -> None:
        if self._previous is None:
            sys.setprofile(None)
        self._noting.close()
        super().__exit__(*error)  # type: ignore[no-untyped-call]

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if self._previous is not None:
            return func(*args, **(kwargs or {}))
        sys.setprofile(None)
        try:
            return func(*args, **(kwargs or {}))
        finally:
            sys.setprofile(self._event)

    def _event(self, frame: FrameType, event: str, arg: Any) -> None:
        if event == "call":
            if frame.f_code not in self._started:
                self._started.add(frame.f_code)
                self._start(frame)
        elif event == "c_call" and self.clock is None and arg in CLOCKS and self._reads_it(frame):
            summary = traceback.extract_stack(frame, limit=1)
            self.clock = Line(summary[0])

    def _start(self, frame: FrameType) -> None:
        code, space = frame.f_code, frame.f_globals
        if not is_users(frame):
            if str(space.get("__name__")).startswith("torch.nn."):
                self.names.update(code.co_names)
            return
        if self._interrupts(frame):
            self._started.discard(code)  # forward may call it, too
            return
        names = {name for inner in codes_in(code) for name in inner.co_names}
        texts = {const for inner in codes_in(code) for const in inner.co_consts if isinstance(const, str)}
        self.names |= names | {text for text in texts if len(text) < 64}
        self.free.update(code.co_freevars)
        if not self._is_watched(space):
            return
        self.codes[code] = space
        for name in names | (texts & space.keys()):
            self._global(space, name, names)
        if code.co_argcount and code.co_varnames[0] in ("self", "cls"):
            owner = frame.f_locals.get(code.co_varnames[0])
            self._class(owner if isinstance(owner, type) else type(owner))

    def _reads_it(self, frame: FrameType) -> bool:
        return is_users(frame) and not self._interrupts(frame)

    def _is_watched(self, space: dict[str, Any]) -> bool:
        return _package(space.get("__name__")) in self._packages or not is_installed(space.get("__file__"))

    def _interrupts(self, frame: FrameType | None) -> bool:
        """Whether the interpreter called this by itself: as a callback, a signal handler or a finalizer."""
        while frame is not None and not str(frame.f_globals.get("__name__")).startswith(_OURS):
            code = frame.f_code
            if code in self._callbacks or code.co_name == "__del__" or _is_told_of_a_death(frame):
                return True
            frame = frame.f_back
        return False

    def _global(self, space: dict[str, Any], name: str, names: set[str]) -> None:
        self._look(self.roots.add(f"the global {name!r} of {space.get('__name__')}", space, name))
        value = space.get(name)
        if isinstance(value, type):
            self._class(value)
        elif isinstance(value, ModuleType) and not is_foreign(value.__name__):
            for inner in names & vars(value).keys():
                self._look(self.roots.add(f"the global {inner!r} of {value.__name__}", vars(value), inner))

    def _class(self, cls: type) -> None:
        self._look(*add_class(self.roots, cls))

    def _look(self, *places: Place | None) -> None:
        for place in places:
            if place is not None:
                self.before.look(*place)


def _package(module: object) -> str:
    return str(module).partition(".")[0]


def _callbacks() -> set[CodeType]:
    """Of the garbage collector and of signals."""
    handlers = (signal.getsignal(number) for number in signal.valid_signals())
    calls = [call for call in (*gc.callbacks, *handlers) if callable(call)]
    functions = (
        getattr(call, "__func__", call if hasattr(call, "__code__") else type(call).__call__) for call in calls
    )
    return {function.__code__ for function in functions if hasattr(function, "__code__")}


def _is_told_of_a_death(frame: FrameType) -> bool:
    """Whether a frame runs the callback of a weak reference, which is given that reference."""
    code = frame.f_code
    given = frame.f_locals.get(code.co_varnames[code.co_argcount - 1]) if code.co_argcount else None
    return isinstance(given, weakref.ReferenceType) and given() is None


def is_users(frame: FrameType) -> bool:
    """Whether a frame runs code that is neither torch's nor the standard library's nor capture's own."""
    name = frame.f_globals.get("__name__")
    return not is_foreign(name) and not str(name).startswith(_OURS)


def codes_in(code: CodeType) -> Iterator[CodeType]:
    """A function's code, and that of the functions inside."""
    yield code
    for const in code.co_consts:
        if isinstance(const, CodeType):
            yield from codes_in(const)


@cache
def loaded_globals(code: CodeType) -> frozenset[str]:
    """The names of globals that a function's own code reads."""
    steps = dis.get_instructions(code)
    return frozenset(str(step.argval) for step in steps if step.opname in ("LOAD_GLOBAL", "LOAD_NAME"))
