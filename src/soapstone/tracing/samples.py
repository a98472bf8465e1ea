"""Where the samples are in what lies between ops. `x.view(-1, width)` hides them among rows; an op that reads such rows
has samples for a dim of their own nevertheless, so that they can be split there as anywhere else."""

from __future__ import annotations

from typing import NamedTuple

from .. import _core
from .refine import Draft, refine_dims


class Place(NamedTuple):
    """Samples are a factor of this axis, inside of one of size `outer`."""

    axis: int
    outer: int
    size: int


class Samples:
    """The places in values, by number; those of the inputs are given, the others are found op by op."""

    def __init__(self, given: dict[int, Place]) -> None:
        self._places = {value: place for value, place in given.items() if place.size > 1}

    def cut(self, step: Draft, number: int, value: int) -> None:
        """Let a step that reads a value have its samples apart."""
        if value not in self._places:
            return
        axis, outer, size = self._places[value]
        while True:
            factors = step.reads[number][axis]
            sizes = [factor.size for factor in factors]
            rest = step.source.call.shapes[number][axis] // (outer * size)
            fine = _core.refine(sizes, [n for n in (outer, size, rest) if n > 1])
            if fine is None or not all(factor.identity for factor in factors):
                return
            if not refine_dims(step, [factor.dim for factor in factors], fine):
                return

    def follow(self, steps: list[Draft]) -> None:
        """From what the steps of an op read to what they make."""
        for step in steps:
            dims: dict[int, int] = {}  # that count samples
            for number, value in enumerate(step.source.inputs):
                if value not in self._places:
                    continue
                axis, wanted, size = self._places[value]
                outer = 1
                for factor in step.reads[number][axis]:
                    if outer == wanted and factor.size == size and factor.identity:
                        dims[factor.dim] = size
                    outer *= factor.size
            for value, write in zip(step.source.outputs, step.writes):
                self._note(step, value, write, dims)

    def _note(self, step: Draft, value: int, write: list[list[int]], dims: dict[int, int]) -> None:
        for axis, made in enumerate(write):
            outer = 1
            for dim in made:
                if dim in dims:
                    self._places[value] = Place(axis, outer, dims[dim])
                outer *= step.dims[dim].size
