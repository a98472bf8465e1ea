"""Inputs for a part that is measured alone: of the right shapes and types, and nothing that its op refuses."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ...graph import Op, OperatorGraph
from ...parts import Part, local_shape, ranges


def drawn_inputs(graph: OperatorGraph, part: Part) -> list[torch.Tensor]:
    """One tensor for each of the op's inputs; those whose gradients training wants require them."""
    ends = _ends(part.op)
    inputs = []
    for number, operand in enumerate(part.op.inputs):
        value, tensor = part.op.values[operand.value], graph.tensors[operand.tensor]
        shape = local_shape(part.input_box(number), value.factoring)
        dtype: torch.dtype = getattr(torch, value.dtype)
        if dtype.is_floating_point:
            x = _drawn(shape, dtype, centred=tensor.source == "parameter").requires_grad_(tensor.grad)
        elif dtype == torch.bool:
            x = torch.ones(shape, dtype=dtype)
        else:
            x = torch.randint(0, min(ends.get(operand.value, 1), torch.iinfo(dtype).max), shape, dtype=dtype)
        inputs.append(x)
    return inputs


def _drawn(shape: Sequence[int], dtype: torch.dtype, *, centred: bool) -> torch.Tensor:
    """Small weights, as after initialisation. All else lies between 0 and 1, where logarithms, roots and the
    cross entropy of probabilities are at home."""
    x = torch.rand(shape, dtype=torch.float32)
    return ((x - 0.5) * 0.2 if centred else x * 0.9 + 0.05).to(dtype)


def _ends(op: Op) -> dict[int, int]:
    """By input value, below which number an index is legal wherever the op may look something up by it."""
    value_of = {operand.tensor: operand.value for operand in op.inputs}
    found = {value_of[tensor]: allowed.end for tensor, allowed in ranges(op)}
    for step in op.steps:
        shapes = [op.values[v].shape for v in step.inputs]
        # Any axis may be the one that is looked up, so the shortest is the limit.
        least = min((n for shape in shapes for n in shape if n > 0), default=1)
        for value in step.inputs:
            found.setdefault(value, least)
    return found
