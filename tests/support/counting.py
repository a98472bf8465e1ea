"""What torch counts and keeps when a model runs eagerly, to hold a graph's facts against."""

from __future__ import annotations

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

import soapstone as ss
from soapstone.rules import facts_of


def counted_flops(work: ss.Workload) -> int:
    """Of the products in a forward pass."""
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:  # the CPU's own it does not count
        work.compute_loss(*work.batch)
    return int(counter.get_total_flops())


def products(graph: ss.OperatorGraph) -> int:
    """The flops of a graph's products."""
    families = ("dense", "conv", "attention", "cell")
    return sum(step.flops for op in graph.ops for step in op.steps if facts_of(step.kind).family in families)


def saved_by_eager(work: ss.Workload) -> int:
    """The bytes that autograd keeps for backward, parameters and buffers apart."""
    held = {t.untyped_storage().data_ptr() for t in (*work.model.parameters(), *work.model.buffers())}
    kept: dict[int, torch.Tensor] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        if (where := tensor.untyped_storage().data_ptr()) not in held:
            kept[where] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        loss = work.compute_loss(*work.batch)
    assert loss.requires_grad
    return sum(tensor.untyped_storage().nbytes() for tensor in kept.values())
