"""Costs from a table of devices: a part's kernels, one after the other, each as fast as the device lets it be, and what
their host takes to launch them. `devices.yaml` has the figures and where they come from."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ...errors import SoapstoneError, meant
from ...graph import ITEM_SIZES, Op, OperatorGraph
from ..protocol import Costs, OpTimes
from .kernels import Box, Kernel, Kernels, StepPart, around_combine, kernels_of, size
from .seconds import kernel_seconds
from .table import device_of, speed_of, table

Stages = tuple[Kernels, Kernels, Kernels, Kernels]


class AnalyticCosts(Costs):
    """Costs from the table. Convolutions in float32 are TF32's where a device has it, as is PyTorch's default; `tf32`
    says that other products are, too (`torch.set_float32_matmul_precision("high")`). Raises SoapstoneError for a kind
    of device or an optimizer that it does not have."""

    by_signature = True
    tf32 = False

    def __init__(self, *, tf32: bool = False) -> None:
        self.tf32 = tf32

    def times(
        self, graph: OperatorGraph, index: int, extents: tuple[int, ...], device_kind: str, combines: bool
    ) -> OpTimes:
        device_of(device_kind)
        stages = stages_of(graph, index, extents, combines)
        times = [self._nanoseconds(kernels, device_kind) for kernels in stages]
        return OpTimes(*(device for device, _ in times), *(host for _, host in times))

    def update(self, device_kind: str, optimizer: str) -> tuple[int, float]:
        known = table()["updates"]
        if optimizer not in known:
            remedy = meant(optimizer, known, f"there are {', '.join(known)}")
            raise SoapstoneError(f"no costs for optimizer {optimizer!r}; {remedy}")
        device = device_of(device_kind)
        return int(device["launch"]), known[optimizer] / (0.8 * float(device["bandwidth"])) * 1e9

    def _nanoseconds(self, kernels: Kernels, device_kind: str) -> tuple[int, int]:
        """Of the device, at least 1, and of its host."""
        seconds = host = 0.0
        for row, dtype, moved, sums, terms, tile, lane, repeats, tensor, plain in kernels:
            speed = speed_of(row, dtype, device_kind, self.tf32)
            slower = max(tensor * speed.tensor, 1.0) if speed.tensor else plain
            rates = speed.figures, speed.peak, speed.bandwidth, speed.units
            seconds += repeats * (kernel_seconds(*rates, moved, sums * slower, terms, tile * slower, lane) + speed.own)
            host += repeats * speed.launch
        return max(1, round(seconds * 1e9)), round(host)


def stages_of(graph: OperatorGraph, index: int, extents: tuple[int, ...], combines: bool) -> Stages:
    """A part's kernels: forward, backward, and both after the combine."""
    op = graph.ops[index]
    dims, needs, values = graph.native.regions_at(index, [(0, n) for n in extents])
    finishes = combines and op.finishes
    stages: Stages = [], [], [], []
    graded = {operand.value: graph.tensors[operand.tensor].grad for operand in op.inputs}
    for s, step in enumerate(op.steps):
        wanted = [graded.get(v, False) for v in step.inputs]
        graded.update(dict.fromkeys(step.outputs, any(wanted)))
        part = StepPart(op, step, dims[s], needs[s], [values[v] for v in step.outputs], wanted)
        found = kernels_of(part)
        if combines and s == op.head:
            kernels = around_combine(part, found)
        else:
            kernels = ([], [], *found) if finishes and s > op.head else (*found, [], [])
        for stage, made in zip(stages, kernels):
            stage += made
    if not op.backward:
        return stages[0], [], stages[2], []
    stages[1].extend(_sums_with_others(graph, op, values))
    return stages


def _sums_with_others(graph: OperatorGraph, op: Op, values: Sequence[Box]) -> Iterator[Kernel]:
    """What adds the gradients of parameters that other ops share to theirs."""
    for operand in op.inputs:
        tensor = graph.tensors[operand.tensor]
        if tensor.source == "parameter" and tensor.grad and graph.readers[operand.tensor] > 1:
            yield Kernel("add", tensor.dtype, 3 * size(values[operand.value]) * ITEM_SIZES[tensor.dtype])
