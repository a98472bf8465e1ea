"""Which values share their bytes with others, and which stay in memory until backward."""

from __future__ import annotations

from collections.abc import Sequence

from .ops import Op, Tensor

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


def kept_values(op: Op, tensors: Sequence[Tensor]) -> set[int]:
    """The values that stay until backward, those that own their bytes; a parameter is there all along."""
    storage, outer = storages(op), {o.value: tensors[o.tensor] for o in (*op.inputs, *op.outputs)}
    kept = {storage[v] for v in op.saved}
    return {v for v in kept if v in op.saved or v not in outer or outer[v].source != "parameter"}
