"""What an iteration's time comes to: samples and tokens a second, and the share of the devices' peak."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from math import prod

from ..costs import peak_flops
from ..graph import Op, OperatorGraph
from ..topology import Topology


@dataclass(frozen=True)
class Throughput:
    """A second's samples, its tokens where the model reads some, and the model flops utilisation (MFU): the flops of
    forward and backward over what all devices could do at their peak; None where a device's peak is not known."""

    samples: float
    tokens: float | None
    mfu: float | None

    def __str__(self) -> str:
        tokens = "" if self.tokens is None else f", {self.tokens:,.0f} tokens/s"
        mfu = "" if self.mfu is None else f", {self.mfu:.1%} of the devices' peak (MFU)"
        return f"{self.samples:,.1f} samples/s{tokens}{mfu}"


def throughput(graph: OperatorGraph, topology: Topology, seconds: float) -> Throughput:
    """Of an iteration that takes so long."""
    batch, tokens = counted(graph)
    flops, precision = _flops(graph)
    peaks = [peak_flops(device.kind, precision) for device in topology.devices]
    most = None if None in peaks else sum(peak for peak in peaks if peak is not None)
    mfu = flops / (seconds * most) if most else None
    return Throughput(batch / seconds, None if tokens is None else tokens / seconds, mfu)


def counted(graph: OperatorGraph) -> tuple[int, int | None]:
    """The samples of a batch, and its tokens: the elements of the first input of integers of samples by length."""
    given = [graph.tensors[i] for i, axis in zip(graph.inputs, graph.settings.batch_dims) if axis is not None]
    words = (tensor for tensor in given if len(tensor.shape) == 2 and "int" in tensor.dtype)
    return graph.num_samples, next((prod(tensor.shape) for tensor in words), None)


def _flops(graph: OperatorGraph) -> tuple[int, str]:
    """Of forward and backward, and the precision that most of them have: convolutions in float32 run in TF32, where
    there is such a thing, by PyTorch's default."""
    counts: Counter[str] = Counter()
    for op in graph.ops:
        dtype = op.values[op.steps[op.head].outputs[0]].dtype
        precision = "tf32" if dtype == "float32" and op.kind.startswith("conv") else dtype
        counts[precision] += op.flops * (1 + _products(graph, op))
    return sum(counts.values()), counts.most_common(1)[0][0]


def _products(graph: OperatorGraph, op: Op) -> int:
    """Backward's flops as a multiple of forward's: one product for each factor's gradient. A frozen weight has no
    gradient."""
    parameters = [graph.tensors[o.tensor] for o in op.inputs if graph.tensors[o.tensor].source == "parameter"]
    is_frozen = bool(parameters) and not any(parameter.grad for parameter in parameters)
    return (1 if is_frozen else 2) if op.backward else 0
