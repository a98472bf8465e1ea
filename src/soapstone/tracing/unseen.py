"""What torch.export would not tell: an autograd.Function, whose backward it drops, and a layer that is left out at
random, which it takes for a branch on data even where that never happens."""

from __future__ import annotations

import random
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch

from ..errors import CaptureError
from .users_code import line_here

Function = torch.autograd.Function


@contextmanager
def refused_functions() -> Iterator[None]:
    """An autograd.Function of the user's raises CaptureError."""
    known: Any = Function.apply

    def apply(cls: type[Function], *args: Any, **kwargs: Any) -> Any:
        if not cls.__module__.startswith("torch."):
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
        return Chance() if one and options.get("size", ()) in ((), []) else drawn

    with patch.object(torch, "rand", rand):
        yield


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
