"""Which numbers an op takes in its integer inputs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ..graph import Op
from ..rules import facts_of


@dataclass(frozen=True, slots=True)
class Range:
    """An integer input's legal values: below `end`, or the one that is ignored."""

    op: str
    end: int
    ignored: int | None


def ranges(op: Op) -> Iterator[tuple[int, Range]]:
    """The tensors that an op looks elements up by, and what they may hold."""
    tensor_of = {operand.value: operand.tensor for operand in op.inputs}
    source = {v: step.inputs[0] for step in op.steps for v in step.outputs if len(step.inputs) == 1}
    for step in op.steps:
        lookup = facts_of(step.kind).lookup
        if not step.ruled or lookup is None:
            continue
        value = step.inputs[step.slots.index(lookup.slot)]
        while value in source:  # a view or a slice of it holds the same numbers
            value = source[value]
        if value in tensor_of:
            end = next(d.size for d in step.dims if d.name == lookup.dim)
            yield tensor_of[value], Range(op.name, end, step.args.get("ignore_index"))
