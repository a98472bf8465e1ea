"""Which values share their bytes with others, and which stay in memory until backward."""

from __future__ import annotations

from collections.abc import Sequence

from .ops import ITEM_SIZES, Op, Tensor

CAST = "_to_copy"
_TURNS = ("permute", "transpose", "t")
_SPREADS = (*_TURNS, "expand")
_VIEWS = ("view", "slice", "select", *_SPREADS)


def storages(op: Op) -> list[int]:
    """For each value the one that its bytes are counted with: itself, or what it is a view of. A reshaped value is a
    copy where it was turned or spread before. Where an op's output is a whole view of something inside, that counts as
    it."""
    outer = {o.value for o in (*op.inputs, *op.outputs)}
    storage, turned = list(range(len(op.values))), [False] * len(op.values)
    for step in op.steps:
        if step.kind not in _VIEWS or (step.kind == "view" and turned[step.inputs[0]]):
            continue
        base, made = step.inputs[0], step.outputs[0]
        turned[made] = turned[base] or step.kind in _SPREADS
        if made not in outer:
            storage[made] = storage[base]
        elif storage[base] not in outer and op.values[made].bytes == op.values[storage[base]].bytes:
            storage = [made if of == storage[base] else of for of in storage]
    return storage


class Casts:
    """The values that stay in memory until backward, op after op. Several ops may cast a tensor to one type, each for
    itself. A segment makes one such cast if it is of a parameter or to a larger type. So it counts where it is first,
    as if all these ops were in one segment."""

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self._tensors = tensors
        self._known: set[tuple[int, str]] = set()

    def of(self, op: Op) -> list[tuple[int, int]]:
        """The values that are an input in another type, each with the number of that input."""
        inputs = {operand.value: number for number, operand in enumerate(op.inputs)}
        casts = (step for step in op.steps if step.kind == CAST and step.inputs[0] in inputs)
        outer = {operand.value for operand in op.outputs}
        return [(step.outputs[0], inputs[step.inputs[0]]) for step in casts if step.outputs[0] not in outer]

    def kept(self, op: Op) -> set[int]:
        """The values that stay, those that own their bytes; a parameter is there all along. Ops come in the graph's
        order."""
        kept = self._owners(op)
        for value, number in self.of(op):
            tensor, dtype = op.inputs[number].tensor, op.values[value].dtype
            source = self._tensors[tensor]
            if value not in kept or (source.source != "parameter" and ITEM_SIZES[dtype] <= ITEM_SIZES[source.dtype]):
                continue
            if (tensor, dtype) in self._known:
                kept.remove(value)
            self._known.add((tensor, dtype))
        return kept

    def _owners(self, op: Op) -> set[int]:
        storage, outer = storages(op), {o.value: self._tensors[o.tensor] for o in (*op.inputs, *op.outputs)}
        kept = {storage[v] for v in op.saved}
        return {v for v in kept if v in op.saved or v not in outer or outer[v].source != "parameter"}
