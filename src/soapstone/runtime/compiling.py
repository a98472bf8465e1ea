"""Which segments run compiled. One that torch.compile does not take runs as it was recorded, and is named once."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import TypeVar

from ..parts import Recording

T = TypeVar("T")

SEGMENT_BYTES = 25 * 2**20  # of gradients that a compiled segment completes; DistributedDataParallel's bucket


class Compiler:
    """Tries each segment's forward, then its backward, which torch compiles when it first runs. `name` tells the ops of
    a segment."""

    def __init__(self, name: Callable[[int], str]) -> None:
        self._name = name
        self._untried: set[tuple[int, str]] = set()

    def add(self, number: int, recording: Recording) -> None:
        """Compile a segment from now on."""
        recording.compile()
        self._untried |= {(number, "forward"), (number, "backward")}

    def attempt(self, number: int, direction: str, recording: Recording, act: Callable[[], T]) -> T:
        """Do something with a compiled segment; where its first time fails, do it again uncompiled."""
        if (number, direction) not in self._untried:
            return act()
        self._untried.discard((number, direction))
        try:
            return act()
        except Exception as error:  # whatever torch.compile raises
            reason = " ".join(str(error).split("\n")[:2]).strip() or type(error).__name__
            warnings.warn(f"{self._name(number)} does not compile and runs as before: {reason}", stacklevel=2)
            recording.compile(False)
            self._untried.discard((number, "backward"))
        return act()
