"""Products in which each row names its expert, as ops of their own, so that a recording holds them as one call."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from ..place import Place, Tensors, kernel

GROUPED = torch.bfloat16  # what torch's product by groups takes on a GPU


@kernel("routed_mm")
def _routed_mm(place: Place, inputs: Tensors) -> torch.Tensor:
    """Rows whose expert this part has; zeros for the others, which another part computes."""
    first, total = place.interval("expert")[0], place.size("expert")
    tensors = inputs["input"], inputs["weight"], inputs["experts"]
    found: torch.Tensor = torch.ops.soapstone.routed_mm(*tensors, first, total)
    return found


@torch.library.custom_op("soapstone::routed_mm", mutates_args=())
def routed_mm(
    input: torch.Tensor, weight: torch.Tensor, experts: torch.Tensor, first: int = 0, total: int = 0
) -> torch.Tensor:
    """Row i times the matrix of expert `experts[i]`; a number of no expert counts as that of the nearest.

    The matrices may be those of some experts only, from `first` on, of `total`. Other experts' rows are then zeros."""
    own = _own(experts, first, len(weight), total)
    if input.is_cuda and input.dtype == GROUPED:
        order, ends = _by_expert(own, len(weight))
        products = torch._grouped_mm(input.index_select(0, order), weight, offs=ends.int())
        places = torch.arange(len(order), device=order.device)
        made = products.index_select(0, torch.empty_like(order).scatter_(0, order, places))
        return made if len(weight) >= total else made.masked_fill_((own == len(weight))[:, None], 0)
    made = input.new_zeros(len(input), weight.shape[2])
    for expert, rows in _each(own, len(weight)):
        made[rows] = input[rows] @ weight[expert]
    return made


@torch.library.custom_op("soapstone::routed_mm_weight", mutates_args=())
def routed_mm_weight(
    input: torch.Tensor, grad: torch.Tensor, experts: torch.Tensor, first: int, count: int, total: int
) -> torch.Tensor:
    """The gradient of `count` matrices: the sum of each expert's rows' outer products."""
    own = _own(experts, first, count, total)
    if input.is_cuda and input.dtype == GROUPED:
        order, ends = _by_expert(own, count)
        rows, slopes = input.index_select(0, order), grad.index_select(0, order)
        return torch._grouped_mm(rows.t(), slopes, offs=ends.int())
    made = input.new_zeros(count, input.shape[1], grad.shape[1])
    for expert, rows in _each(own, count):
        made[expert] = input[rows].t() @ grad[rows]
    return made


def _own(experts: torch.Tensor, first: int, count: int, total: int) -> torch.Tensor:
    """The place of each row's expert among these; `count` for another's."""
    experts = experts.clamp(0, max(total, first + count) - 1)
    return torch.where((experts >= first) & (experts < first + count), experts - first, count)


def _by_expert(own: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The order in which each expert's rows lie together, others last; and where each expert's end."""
    found, order = own.sort(stable=True)
    return order, torch.searchsorted(found, torch.arange(count, device=found.device, dtype=found.dtype), right=True)


def _each(own: torch.Tensor, count: int) -> Iterator[tuple[int, torch.Tensor]]:
    """Each expert that has rows, and which."""
    order, ends = _by_expert(own, count)
    begin = 0
    for expert, end in enumerate(ends.tolist()):
        if begin < end:
            yield expert, order[begin:end]
        begin = end


@routed_mm.register_fake
def _(input: torch.Tensor, weight: torch.Tensor, experts: torch.Tensor, first: int = 0, total: int = 0) -> torch.Tensor:
    return input.new_empty(input.shape[0], weight.shape[2])


@routed_mm_weight.register_fake
def _(
    input: torch.Tensor, grad: torch.Tensor, experts: torch.Tensor, first: int, count: int, total: int
) -> torch.Tensor:
    return input.new_empty(count, input.shape[1], grad.shape[1])


def _keep(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
    rows, weight, experts, ctx.first, ctx.total = inputs
    ctx.save_for_backward(rows, weight, experts)


def _backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
    rows, weight, experts = ctx.saved_tensors
    wanted, which = ctx.needs_input_grad, (ctx.first, ctx.total)
    ops = torch.ops.soapstone
    data = ops.routed_mm(grad, weight.transpose(1, 2), experts, *which) if wanted[0] else None
    own = ops.routed_mm_weight(rows, grad, experts, ctx.first, len(weight), ctx.total) if wanted[1] else None
    return data, own, None, None, None


routed_mm.register_autograd(_backward, setup_context=_keep)

for device in ("cpu", "cuda"):  # as autocast treats products; float16 is refused at capture
    torch.library.register_autocast("soapstone::routed_mm", device, torch.bfloat16)
