"""Which segments run compiled or as CUDA graphs. One that cannot runs as it was recorded, and is named once."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from typing import TypeVar

from ..parts import Recording

T = TypeVar("T")

SEGMENT_BYTES = 25 * 2**20  # of gradients that such a segment completes; DistributedDataParallel's bucket


class Compiler:
    """Tries each segment's forward, then its backward, which torch compiles when it first runs. `name` tells the ops of
    a segment."""

    def __init__(self, name: Callable[[int], str], compiled: bool, graphed: bool) -> None:
        self._name, self._compiled, self._graphed = name, compiled, graphed
        self._untried: set[tuple[int, str]] = set()

    def add(self, number: int, recording: Recording, lasting: Iterable[int]) -> None:
        """Compile a segment from now on; some of its inputs stay where they are in memory."""
        if self._compiled:
            recording.compile()
        if self._graphed:
            recording.keep_launches(lasting)
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
            what = "does not compile" if self._compiled else "cannot be a CUDA graph"
            warnings.warn(f"{self._name(number)} {what} and runs as before: {reason}", stacklevel=2)
            recording.restore()
            self._untried.discard((number, "backward"))
        return act()
