"""Run one op whole and in parts, on one device: the proof of its rule."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from math import prod
from typing import Any

import torch
from torch import nn

from soapstone.graph import OperatorGraph
from soapstone.parts import Part, local_shape, reframe, whole
from soapstone.runtime.draws import CounterDraws
from soapstone.runtime.store import constant
from soapstone.tracing import Workload


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
    draws = CounterDraws(1, torch.device("cpu"))
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


class Function(nn.Module):
    def __init__(self, function: Callable[..., torch.Tensor], *parameters: torch.Tensor) -> None:
        super().__init__()
        self.function = function
        self.weights = nn.ParameterList([nn.Parameter(p) for p in parameters])

    def forward(self, *inputs: torch.Tensor) -> Any:
        return self.function(*inputs, *self.weights)


def rand(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64)


def loss_of(output: torch.Tensor) -> torch.Tensor:
    weights = torch.linspace(-1, 2, max(output.numel(), 1), dtype=output.dtype)[: output.numel()].view(output.shape)
    return (output * weights).sum()


def check_ops(graph: OperatorGraph, work: Workload, draw: Callable[[int, int], int]) -> None:
    """Run op after op, whole and in parts, and compare; the last must be the model's own loss."""
    state = dict(work.model.named_parameters()) | dict(work.model.named_buffers())
    values: dict[int, torch.Tensor] = {}
    batch = iter(graph.inputs)
    for x in work.batch:
        values[next(batch)] = x
    for i, t in enumerate(graph.tensors):
        if t.source in ("parameter", "buffer"):
            values[i] = state[t.name].detach()
        elif t.source == "constant":
            values[i] = constant(t)
    for index, op in enumerate(graph.ops):
        inputs = [values[o.tensor] for o in op.inputs]
        degrees = [draw(1, min(d.size, 3)) if d.splittable else 1 for d in op.dims]
        whole, whole_grads, whole_updates = forward_backward(graph, index, [1] * len(degrees), inputs)
        split, split_grads, split_updates = forward_backward(graph, index, degrees, inputs)
        for a, b in zip(split + split_grads, whole + whole_grads, strict=True):
            close(a, b)
        assert split_updates.keys() == whole_updates.keys() == {o.tensor for o in op.updates}
        for tensor in whole_updates:
            close(split_updates[tensor], whole_updates[tensor])
        values.update({o.tensor: x for o, x in zip(op.outputs, whole)})
    if any("draw" in step.args for op in graph.ops for step in op.steps):
        return  # its own masks, not torch's
    close(values[graph.loss], work.compute_loss(*work.batch).detach())


def forward_backward(graph: OperatorGraph, index: int, degrees: list[int], inputs: list[torch.Tensor]) -> Any:
    sources = [graph.tensors[o.tensor].source for o in graph.ops[index].inputs]
    leaves = [x.clone().requires_grad_(x.is_floating_point() and s != "constant") for x, s in zip(inputs, sources)]
    outputs, updates = run_parts(graph, index, degrees, leaves)
    total = sum((loss_of(y) for y in outputs if y.requires_grad), torch.zeros((), dtype=torch.float64))
    wanted = [x for x in leaves if x.requires_grad]
    grads = torch.autograd.grad(total, wanted, allow_unused=True) if total.requires_grad else [None] * len(wanted)
    filled = [torch.zeros_like(x) if g is None else g for g, x in zip(grads, wanted)]
    return [y.detach() for y in outputs], filled, updates


def close(a: torch.Tensor, b: torch.Tensor) -> None:
    assert a.shape == b.shape
    a, b = a.double(), b.double()
    assert torch.isfinite(a).all()
    assert (a - b).abs().max().item() <= 1e-9 * max(b.abs().max().item(), 1e-3) if a.numel() else True
