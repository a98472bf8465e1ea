"""What the steps after a combine begin with.

They may run long after the steps before it, when gathered weights have been freed. So what was made of parameters
alone, often a view of one, is made again once these are there again; the rest is kept.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..graph import Op, OperatorGraph
from ..rules import facts_of


@dataclass(frozen=True, slots=True)
class Finish:
    """Values by their number in the op, steps likewise."""

    inputs: frozenset[int] = frozenset()
    again: tuple[int, ...] = ()
    kept: tuple[int, ...] = ()


def finish_of(graph: OperatorGraph, op: Op) -> Finish:
    if not op.finishes:
        return Finish()
    before = op.steps[: op.head]
    needed = {value for step in op.steps[op.head :] for value in step.inputs}
    again = []
    for number in reversed(_of_parameters(graph, op)):
        if needed & set(before[number].outputs):
            again.append(number)
            needed = needed - set(before[number].outputs) | set(before[number].inputs)
    kept = needed & {value for step in before for value in step.outputs}
    return Finish(frozenset(needed - kept), tuple(reversed(again)), tuple(sorted(kept)))


def _of_parameters(graph: OperatorGraph, op: Op) -> list[int]:
    """The steps before the head that read parameters alone, and draw nothing."""
    known = {operand.value for operand in op.inputs if graph.tensors[operand.tensor].source == "parameter"}
    found = []
    for number, step in enumerate(op.steps[: op.head]):
        if known.issuperset(step.inputs) and not facts_of(step.kind).draws:
            found.append(number)
            known.update(step.outputs)
    return found
