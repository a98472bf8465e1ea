"""Numbers about a graph, for people and for reports."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from .ops import Op, Tensor
from .storages import Casts


@dataclass(frozen=True)
class Facts:
    """One iteration's whole batch. Bytes are what ops read and write; saved bytes stay from forward to backward."""

    ops: int
    layers: int
    flops: int  # of the forward pass
    bytes: int
    parameters: int
    parameter_bytes: int
    saved_bytes: int
    split_share: float  # of the flops, in ops that split in two or more dims
    unruled: dict[str, float]  # kind -> share of the flops

    def __str__(self) -> str:
        lines = [
            f"{self.ops} ops in {self.layers} layers, {scaled(self.flops, 'flop')} forward, "
            f"{self.parameters:,} parameters ({scaled(self.parameter_bytes, 'B')}), "
            f"{scaled(self.saved_bytes, 'B')} saved for backward.",
            f"{self.split_share:.1%} of the flops lie in ops that split in two or more dims.",
        ]
        if self.unruled:
            named = ", ".join(f"{kind} ({share:.1%} of the flops)" for kind, share in self.unruled.items())
            lines.append(f"Without a rule, and so whole on one device: {named}.")
        return "\n".join(lines)


def facts_of(ops: Sequence[Op], tensors: Sequence[Tensor]) -> Facts:
    parameters = [t for t in tensors if t.source == "parameter"]
    flops = sum(op.flops for op in ops)
    split = sum(op.flops for op in ops if sum(dim.splittable for dim in op.dims) >= 2)
    kinds = sorted({step.kind for op in ops for step in op.steps if not step.ruled})
    return Facts(
        ops=len(ops),
        layers=len({op.layer for op in ops}),
        flops=flops,
        bytes=sum(op_bytes(op) for op in ops),
        parameters=sum(prod(t.shape) for t in parameters),
        parameter_bytes=sum(t.bytes for t in parameters),
        saved_bytes=_saved_bytes(ops, tensors),
        split_share=split / max(flops, 1),
        unruled={kind: sum(op.flops for op in ops if _lacks_rule(op, kind)) / max(flops, 1) for kind in kinds},
    )


def op_bytes(op: Op) -> int:
    """What an op reads and writes, each tensor whole."""
    return sum(op.values[operand.value].bytes for operand in (*op.inputs, *op.outputs))


def scaled(count: float, unit: str) -> str:
    """A number for a person: 1.5 GB."""
    for prefix in ("", "K", "M", "G", "T"):
        if count < 999.5:
            return f"{count:.3g} {prefix}{unit}"
        count /= 1000
    return f"{count:,.3g} P{unit}"


def _saved_bytes(ops: Sequence[Op], tensors: Sequence[Tensor]) -> int:
    """A tensor that several ops keep counts once."""
    kept: set[int] = set()
    inside, casts = 0, Casts(tensors)
    for op in ops:
        outer = {o.value: o.tensor for o in (*op.inputs, *op.outputs)}
        stay = casts.kept(op)
        kept |= {outer[v] for v in stay if v in outer}
        inside += op.extra + sum(op.values[v].bytes for v in stay if v not in outer)
    return inside + sum(tensors[i].bytes for i in kept)


def _lacks_rule(op: Op, kind: str) -> bool:
    return any(step.kind == kind and not step.ruled for step in op.steps)
