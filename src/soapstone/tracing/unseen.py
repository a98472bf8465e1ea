"""What torch.export would not tell: an autograd.Function, whose backward it drops; random numbers that it does not see;
and branches that it takes for ones on data although they never happen, or change nothing."""

from __future__ import annotations

import functools
import random
import re
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch._subclasses import FakeTensor
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from ..errors import CaptureError
from .observe import is_users
from .users_code import line_here

Function = torch.autograd.Function


@contextmanager
def refused_functions() -> Iterator[None]:
    """An autograd.Function of the user's raises CaptureError in this thread."""
    known: Any = Function.apply
    thread = threading.get_ident()

    def apply(cls: type[Function], *args: Any, **kwargs: Any) -> Any:
        if not cls.__module__.startswith("torch.") and threading.get_ident() == thread:
            raise CaptureError(
                f"{cls.__qualname__} is an autograd.Function, whose backward torch.export drops ({line_here()}); write "
                "it with torch's ops, or make it an op: torch.library.custom_op, register_fake and register_autograd"
            )
        return known.__func__(cls, *args, **kwargs)

    with patch.object(Function, "apply", classmethod(apply)):
        yield


@contextmanager
def decided_chances() -> Iterator[None]:
    """One random number that is only held against a probability of 0 or 1 decides nothing."""
    known = torch.rand

    def rand(*size: Any, **options: Any) -> Any:
        one = size in ((), ([],), ((),), (torch.Size([]),)) and not options.get("requires_grad")
        drawn = known(*size, **options)  # in either case, since it moves the generator on
        plain = options.get("size", ()) in ((), []) and not options.get("dtype") and not options.get("generator")
        return Chance() if one and plain else drawn

    with patch.object(torch, "rand", rand):
        yield


@contextmanager
def kept_random_state() -> Iterator[None]:
    """Random states of torch's, Python's and numpy's are afterwards what they were. Seeding torch inside raises
    CaptureError: the graph would not do it. Other threads, such as those that load data, may seed."""
    thread = threading.get_ident()
    numpy = sys.modules.get("numpy")
    ours, python, theirs = torch.get_rng_state(), random.getstate(), numpy and numpy.random.get_state()
    known = torch.manual_seed, torch.seed

    def refused(function: Any) -> Any:
        def seed(*args: Any) -> Any:
            if threading.get_ident() != thread or not is_users(sys._getframe(1)):
                return function(*args)
            raise CaptureError(
                f"the model seeds torch's random numbers in its forward ({line_here()}), which its graph would not do; "
                "seed them outside of the model"
            )

        return functools.wraps(function)(seed)

    try:
        with ExitStack() as stack:
            for holder in (torch, torch.random):
                for function in known:
                    stack.enter_context(patch.object(holder, function.__name__, refused(function)))
            yield
    finally:
        torch.set_rng_state(ours)
        random.setstate(python)
        if numpy is not None:
            numpy.random.set_state(theirs)


@contextmanager
def refused_draws() -> Iterator[None]:
    """Random numbers of Python's or numpy's raise CaptureError: the graph would have those of the capture for ever."""
    before = random.getstate(), _numpy_state()
    yield
    for library, state, now in zip(("Python", "numpy"), before, (random.getstate(), _numpy_state())):
        if state != now:
            raise CaptureError(
                f"the model draws random numbers of {library}'s, which every step would have alike; draw them outside "
                "of the model and pass them as an input, or switch off what draws them"
            )


def _numpy_state() -> object:
    numpy = sys.modules.get("numpy")
    if numpy is None:
        return None
    name, keys, *rest = numpy.random.get_state()
    return name, keys.tobytes(), *rest


class Picks(TorchFunctionMode):
    """`if rows.numel() > 0:`, `if (chosen == e).any():` and `for e in hit:` pass over an expert that no row has chosen.
    They go one way here, for all experts alike: as if there are `some` rows, or as if there are none."""

    def __init__(self, some: bool) -> None:
        super().__init__()
        self.some, self.asked = some, False
        self._masks: dict[int, torch.Tensor] = {}  # of what was compared with a number, and whether any is set
        self._hit: dict[int, tuple[torch.Tensor, int]] = {}  # indices of what is set, and of how many

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name, first = getattr(func, "__name__", ""), args[0] if args else None
        if name == "__bool__" and id(first) in self._masks:
            self.asked = True
            return self.some
        if name == "__len__" and isinstance(first, torch.Tensor) and isinstance(first.shape[0], torch.SymInt):
            raise CaptureError(f"len() has to be a number, which is not known here ({line_here()}); use .numel()")
        if name == "unbind" and id(first) in self._hit and args[1:] in ((), (0,)) and not kwargs:
            return self._each(*self._hit[id(first)])
        made = func(*args, **(kwargs or {}))
        self._note(name, first, made)
        for size in (n for tensor in tree_leaves(made) if isinstance(tensor, FakeTensor) for n in tensor.shape):
            if isinstance(size, torch.SymInt):
                self.asked = True
                torch._check(size > 0 if self.some else size == 0)
        return made

    def _note(self, name: str, first: Any, made: Any) -> None:
        if not isinstance(made, torch.Tensor) or not isinstance(first, torch.Tensor):
            return
        compared = name in ("eq", "__eq__") and first.ndim > 0 and not first.is_floating_point()
        if compared or (name == "any" and id(first) in self._masks):
            self._masks[id(made)] = made
        elif name == "nonzero" and first.ndim == 1:
            self._hit[id(made)] = made, len(first)

    def _each(self, table: torch.Tensor, count: int) -> list[torch.Tensor]:
        self.asked = True
        return [torch.tensor(e).expand(table.shape[1:]) for e in range(count if self.some else 0)]


DEPENDS = (
    "what {} does next depends on numbers in a tensor{}, which torch.export does not follow; compute both ways and "
    "choose by torch.where, or decide by something that is known before"
)


class Chance:
    """A number from 0 up to 1."""

    def _is_below(self, probability: Any) -> bool:
        if isinstance(probability, int | float) and not 0 < probability < 1:
            return probability > 0
        line = line_here()
        settings = re.findall(r"\bself\.(?:config\.)?(\w+)", line.code if line else "")
        setting = settings[-1] if settings else "its probability"
        raise CaptureError(
            f"the model leaves something out at random, which would differ between strategies ({line}); "
            f"set {setting} to 0"
        )

    def __lt__(self, probability: Any) -> bool:
        return self._is_below(probability)

    def __le__(self, probability: Any) -> bool:
        return self._is_below(probability)

    def __gt__(self, probability: Any) -> bool:
        return not self._is_below(probability)

    def __ge__(self, probability: Any) -> bool:
        return not self._is_below(probability)

    def item(self) -> Chance:
        return self
