"""Run one op whole and in parts, on one device: the proof of its rule."""

from __future__ import annotations

import itertools
from math import prod

import torch

from soapstone.graph import OperatorGraph
from soapstone.parts import Part, local_shape, reframe, whole
from soapstone.runtime.draws import CounterDraws


def factoring_of(shape: tuple[int, ...]) -> list[list[int]]:
    return [[n] for n in shape]


def cut(x: torch.Tensor, part: Part, number: int) -> torch.Tensor:
    value = part.op.values[part.op.inputs[number].value]
    dims = factoring_of(value.shape)
    return reframe(x, whole(dims), dims, part.input_box(number), value.factoring)


def run_parts(
    graph: OperatorGraph, index: int, degrees: list[int], inputs: list[torch.Tensor]
) -> tuple[list[torch.Tensor], dict[int, torch.Tensor]]:
    """The op's whole outputs, and the next values of buffers, put together from its parts. Differentiable."""
    op = graph.ops[index]
    parts = [Part(graph, index, degrees, p) for p in range(prod(degrees))]
    groups: dict[tuple[int, ...], list[int]] = {}
    for p, where in enumerate(itertools.product(*map(range, degrees))):
        groups.setdefault(tuple(i for i, dim in zip(where, op.dims) if not dim.combinable), []).append(p)
    local = [[cut(x, part, i) for i, x in enumerate(inputs)] for part in parts]
    outputs: dict[int, list[torch.Tensor]] = {}
    draws = CounterDraws(seed=1)
    for group in groups.values():
        if len(group) == 1:
            outputs[group[0]] = parts[group[0]].run(local[group[0]], draws)
            continue
        shares = [parts[p].partial(local[p], draws) for p in group]
        combine = op.combine
        assert combine is not None
        sizes = dict(enumerate(hi - lo for lo, hi in parts[group[0]].step_dims[op.head]))
        assert shares[0].numel() == combine.factor * prod(sizes[d] for d in combine.dims)
        combined = torch.stack(shares) if combine.mode == "gather" else sum(shares[1:], shares[0])
        for p in group:
            outputs[p] = parts[p].finish(combined, draws)
    return [assemble(parts, outputs, i) for i in range(len(op.outputs))], _updates(graph, parts)


def assemble(parts: list[Part], outputs: dict[int, list[torch.Tensor]], number: int) -> torch.Tensor:
    """Lay the parts' boxes side by side; what no part made stays NaN."""
    op = parts[0].op
    value = op.values[op.outputs[number].value]
    dims = [n for axis in value.factoring for n in axis]
    result = outputs[0][number].new_full(dims, torch.nan)
    for p, part in enumerate(parts):
        box, piece = part.output_box(number), outputs[p][number]
        assert list(piece.shape) == local_shape(box, value.factoring)
        mask = torch.zeros(dims, dtype=torch.bool)
        mask[tuple(slice(lo, hi) for lo, hi in box)] = True
        filled = torch.zeros(dims, dtype=piece.dtype).index_put((mask,), piece.reshape(-1)) if dims else piece
        result = torch.where(mask, filled, result)
    return result.reshape(value.shape)


def _updates(graph: OperatorGraph, parts: list[Part]) -> dict[int, torch.Tensor]:
    result: dict[int, torch.Tensor] = {}
    for part in parts:
        for tensor, (box, new) in part.updates.items():
            result.setdefault(tensor, torch.full(graph.tensors[tensor].shape, torch.nan, dtype=new.dtype))
            result[tensor][tuple(slice(lo, hi) for lo, hi in box)] = new
    return result
