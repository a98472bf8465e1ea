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


class FasterRecording:
    """A recorded segment that runs compiled, as CUDA graphs, or both. `lasting`, which only graphs need, are the
    inputs, by number, that stay where they are in memory. Forward is tried first, then backward, which torch compiles
    when it first runs."""

    def __init__(self, ops: str, recording: Recording, *, compiled: bool, lasting: Iterable[int] | None) -> None:
        self._ops, self._recording = ops, recording
        if compiled:
            recording.compile()
        if lasting is not None:
            recording.keep_launches(lasting)
        self._untried = {"forward"}

    def attempt(self, direction: str, act: Callable[[], T]) -> T:
        """Do something with the segment; where its first time fails, do it again as before. A backward is untried
        once its forward has run. Errors of other ranks, or for want of memory, are not the segment's."""
        if direction not in self._untried:
            return act()
        self._untried.discard(direction)
        while self._recording.is_faster:
            try:
                done = act()
            except (SoapstoneError, torch.OutOfMemoryError):
                raise
            except Exception as error:  # whatever torch raises
                reason = " ".join(str(error).split("\n")[:2]).strip() or type(error).__name__
                sentence = f"{self._ops} {self._recording.fall_back()} and runs as before: {reason}"
                warnings.warn(sentence, stacklevel=2)
            else:
                if direction == "forward":
                    self._untried.add("backward")
                return done
        return act()
