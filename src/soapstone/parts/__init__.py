"""Run one part of one op on real tensors. Rule tests, measured costs and the runtime all do it this way."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ..graph import Op, OperatorGraph
from . import kernels
from .allocator import freed_memory_kept, keep_freed_memory
from .frames import Box, common, hull, lengths, local_shape, overlap, projected, reframe, whole
from .kernels.experts import routed_mm
from .lookups import Range, ranges
from .place import COMBINED, CombinedOrAlone, Draws, Place, Tensors, compute
from .recording import CAPTURING, Function, Recording, record

__all__ = [
    "CAPTURING",
    "Box",
    "Draws",
    "Function",
    "Part",
    "Place",
    "Range",
    "Recording",
    "common",
    "freed_memory_kept",
    "hull",
    "keep_freed_memory",
    "kernels",
    "lengths",
    "local_shape",
    "overlap",
    "projected",
    "ranges",
    "record",
    "reframe",
    "routed_mm",
    "whole",
]


class Part:
    """One part of an op. `inputs` are the op's, each the box that `input_box` gives; `run` returns the outputs.
    Where the op combines, `partial` gives this part's share and `finish` takes what became of all shares."""

    def __init__(self, graph: OperatorGraph, op: int, degrees: Sequence[int], part: int) -> None:
        self._begin(graph.ops[op], graph.native.regions(op, list(degrees), part))

    @classmethod
    def of_extents(cls, graph: OperatorGraph, op: int, extents: Sequence[int]) -> Part:
        """The part at the origin with these extents, one for each of the op's dims."""
        part = cls.__new__(cls)
        part._begin(graph.ops[op], graph.native.regions_at(op, [(0, n) for n in extents]))
        return part

    def _begin(self, op: Op, regions: tuple[Sequence[Box], Sequence[Sequence[Box]], Sequence[Box]]) -> None:
        self.op = op
        self.step_dims, self.needs, self.boxes = regions
        self.updates: dict[int, tuple[Box, torch.Tensor]] = {}  # buffer -> the box of its next value
        self.values: dict[int, torch.Tensor] = {}  # what was computed so far

    def input_box(self, number: int) -> Box:
        """The box of an input, over the dims that the op factors it into."""
        return self.boxes[self.op.inputs[number].value]

    def output_box(self, number: int) -> Box:
        return self.boxes[self.op.outputs[number].value]

    def run(self, inputs: Sequence[torch.Tensor], draws: Draws | None = None) -> list[torch.Tensor]:
        combine = self.op.combine
        combined = COMBINED.get(self.op.steps[self.op.head].kind)
        alone = combined.alone if combined is not None and issubclass(combined, CombinedOrAlone) else None
        if combine is not None and alone is None:  # this part's share is all there is
            share = self.partial(inputs, draws)
            return self.finish(share[None] if combine.mode == "gather" else share, draws)
        self._start(inputs)
        for s in range(len(self.op.steps)):
            place, tensors = self._place(s, draws)
            act = compute if alone is None or combine is None or s != self.op.head else alone
            self._store(place, act(place, tensors))
        return self._outputs()

    def partial(self, inputs: Sequence[torch.Tensor], draws: Draws | None = None) -> torch.Tensor:
        self._start(inputs)
        self._compute(range(self.op.head), draws)
        place, tensors = self._place(self.op.head, draws)
        return COMBINED[place.step.kind].partial(place, tensors)

    def finish(
        self, combined: torch.Tensor, draws: Draws | None = None, again: Sequence[int] = ()
    ) -> list[torch.Tensor]:
        """The steps from the combine on, and before them those that are to be done again."""
        self._compute(again, draws)
        place, tensors = self._place(self.op.head, draws)
        self._store(place, COMBINED[place.step.kind].finish(place, tensors, combined))
        self._compute(range(self.op.head + 1, len(self.op.steps)), draws)
        return self._outputs()

    def updated(self) -> dict[int, Box]:
        """The buffers that this part updates, and the box of each, over the dims of the op's own factoring."""
        found: dict[int, Box] = {}
        for operand in self.op.updates:
            number = next(i for i, o in enumerate(self.op.inputs) if o.tensor == operand.tensor)
            step = next(i for i, s in enumerate(self.op.steps) if self.op.inputs[number].value in s.inputs)
            if kernels.gives_statistics(Place(self.op.steps[step], self.step_dims[step], self.needs[step])):
                found[operand.tensor] = self.input_box(number)
        return found

    def slope(self, weight: torch.Tensor) -> torch.Tensor:
        """What a unit of the sum adds to the output, where all parts together have this weight."""
        step = self.op.steps[self.op.head]
        place = Place(step, self.step_dims[self.op.head], self.needs[self.op.head])
        return COMBINED[step.kind].finish(place, {}, torch.stack([torch.ones_like(weight), weight]))

    def _compute(self, steps: Sequence[int], draws: Draws | None) -> None:
        for s in steps:
            place, tensors = self._place(s, draws)
            self._store(place, compute(place, tensors))

    def _start(self, inputs: Sequence[torch.Tensor]) -> None:
        self.values = {operand.value: x for operand, x in zip(self.op.inputs, inputs)}

    def _place(self, s: int, draws: Draws | None) -> tuple[Place, Tensors]:
        step = self.op.steps[s]
        tensors = {}
        for slot, value, read, need in zip(step.slots, step.inputs, step.reads, self.needs[s]):
            dims = tuple(tuple(f.size for f in axis) for axis in read)
            tensors[slot] = reframe(self.values[value], self.boxes[value], self.op.values[value].factoring, need, dims)
        return Place(step, self.step_dims[s], self.needs[s], draws), tensors

    def _store(self, place: Place, result: Any) -> None:
        results = result if isinstance(result, tuple | list) else [result]
        self.values.update(zip(place.step.outputs, results))
        for operand in self.op.updates if place.updates else ():
            slot = next(i for i, o in enumerate(self.op.inputs) if o.tensor == operand.tensor)
            if self.op.inputs[slot].value in place.step.inputs:
                self.updates[operand.tensor] = (self.input_box(slot), place.updates[operand.value])

    def _outputs(self) -> list[torch.Tensor]:
        return [self.values[operand.value] for operand in self.op.outputs]
