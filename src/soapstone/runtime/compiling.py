"""Which segments run compiled or as CUDA graphs. One that cannot runs as it was recorded, and is named once."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from typing import TypeVar

import torch

from ..errors import SoapstoneError
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
        self._untried.add((number, "forward"))

    def attempt(self, number: int, direction: str, recording: Recording, act: Callable[[], T]) -> T:
        """Do something with such a segment; where its first time fails, do it again as before. A backward is untried
        once its forward has run. Errors of other ranks, or for want of memory, are not the segment's."""
        if (number, direction) not in self._untried:
            return act()
        self._untried.discard((number, direction))
        while recording.is_faster:
            try:
                done = act()
            except (SoapstoneError, torch.OutOfMemoryError):
                raise
            except Exception as error:  # whatever torch raises
                reason = " ".join(str(error).split("\n")[:2]).strip() or type(error).__name__
                sentence = f"{self._name(number)} {recording.fall_back()} and runs as before: {reason}"
                warnings.warn(sentence, stacklevel=2)
            else:
                if direction == "forward":
                    self._untried.add((number, "backward"))
                return done
        return act()
