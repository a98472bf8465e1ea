"""What a model computes: ops over tensors, each op a few steps that say which part of their inputs they need.

A step is one call of torch's. Its dims are the named factors of the axes that it writes, then those that only its
inputs have. `writes` names the dims of each output axis; `reads` gives, for each dim of each input axis, an interval
map from one of the step's dims. An op is one heavy step, its head, with the shape steps before it and the cheap
steps after it; its own dims are those of the step that it ends with, then the head's combinable ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

ITEM_SIZES = {"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2, "int64": 8, "int32": 4, "int16": 2, "int8": 1,
              "uint8": 1, "bool": 1}  # fmt: skip

Line = tuple[int, int, int]  # x -> (p x + b) / q


@dataclass(frozen=True, slots=True)
class Factor:
    """One dim of an input axis: [lo, hi) of the step's dim becomes [lower(lo), upper(hi)), clamped to the size."""

    size: int
    dim: int = -1
    lower: Line = (1, 0, 1)
    upper: Line = (1, 0, 1)
    mapped: bool = False  # `[x]`: other elements than the output's, even where the map moves none

    @classmethod
    def constant(cls, size: int, lo: int, hi: int) -> Factor:
        return cls(size, -1, (0, lo, 1), (0, hi, 1))

    @property
    def identity(self) -> bool:
        return self.dim >= 0 and not self.mapped


@dataclass(frozen=True, slots=True)
class StepDim:
    name: str
    size: int
    whole: bool = False  # `x!`: needed whole, never split


@dataclass(frozen=True, slots=True)
class Combine:
    """How partials become whole: their sum, or all of them gathered. A partial spans some of the head's dims, with
    `factor` numbers an element; `finish` says that the head itself has more to do after the combine."""

    mode: str
    over: tuple[int, ...]
    dims: tuple[int, ...]
    factor: int = 1
    finish: bool = False


Reads = tuple[tuple[Factor, ...], ...]
Writes = tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class Step:
    kind: str
    overload: str
    slots: tuple[str, ...]  # the argument that each input fills: "weight", or "tensors.0" in a list
    inputs: tuple[int, ...]  # values of the op
    outputs: tuple[int, ...]
    args: dict[str, Any] = field(hash=False)
    dims: tuple[StepDim, ...]
    reads: tuple[Reads, ...]
    writes: tuple[Writes, ...]
    combine: Combine | None = None
    ruled: bool = True
    shape: bool = False  # it only moves elements
    flops: int = 0

    def sizes(self, box: list[tuple[int, int]]) -> dict[str, int]:
        """Local extents by dim name."""
        return extents_by_name(self.dims, box)


def extents_by_name(dims: Sequence[StepDim], box: Sequence[tuple[int, int]]) -> dict[str, int]:
    """A refined dim counts with all its factors."""
    extents: dict[str, int] = {}
    for dim, (lo, hi) in zip(dims, box):
        extents[dim.name] = extents.get(dim.name, 1) * (hi - lo)
    return extents


@dataclass(frozen=True, slots=True)
class Value:
    """A tensor inside an op, with the dims that its axes are factored into there."""

    shape: tuple[int, ...]
    dtype: str
    factoring: tuple[tuple[int, ...], ...]

    @property
    def bytes(self) -> int:
        return prod(self.shape) * ITEM_SIZES[self.dtype]


@dataclass(frozen=True, slots=True)
class Dim:
    name: str
    size: int
    kind: str
    splittable: bool
    combinable: bool
    extra: bool  # no output has it
    step: int
    step_dim: int

    def __str__(self) -> str:
        name = f"{{{self.name}}}" if self.combinable else self.name
        return f"{name}={self.size}" + ("" if self.splittable else "!")


@dataclass(frozen=True, slots=True)
class Operand:
    tensor: int
    value: int


@dataclass(frozen=True, slots=True)
class Op:
    name: str
    kind: str
    layer: str
    dims: tuple[Dim, ...]
    values: tuple[Value, ...]
    steps: tuple[Step, ...]
    inputs: tuple[Operand, ...]
    outputs: tuple[Operand, ...]
    head: int
    flops: int
    parameters: tuple[str, ...]
    backward: bool
    updates: tuple[Operand, ...] = ()  # a buffer's next value, by an extra output of the step that reads it
    saved: tuple[int, ...] = ()  # values that stay until backward
    extra: int = 0  # bytes that stay with them: masks, gates, the places of maxima
    recompute: bool = False  # by the model itself, which checkpoints it

    def __str__(self) -> str:
        return f"{self.name}: {self.kind} [{', '.join(map(str, self.dims))}]"

    @property
    def combine(self) -> Combine | None:
        return self.steps[self.head].combine

    @property
    def finishes(self) -> bool:
        """Whether anything is left to do after a combine."""
        return self.combine is not None and (self.combine.finish or self.head + 1 < len(self.steps))

    def dim(self, name: str) -> Dim | None:
        return next((dim for dim in self.dims if dim.name == name), None)


@dataclass(frozen=True, slots=True)
class Tensor:
    """`source` is op, input, parameter, buffer or constant; a constant carries a fill value or its bytes (base64)."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    source: str
    grad: bool
    fill: float | None = None
    data: str | None = None

    @property
    def bytes(self) -> int:
        return prod(self.shape) * ITEM_SIZES[self.dtype]


@dataclass(frozen=True, slots=True)
class Draw:
    """A dropout's mask, drawn in each step, whether the loss needs it or not; `unread`, numbers that nothing reads,
    which torch draws nevertheless."""

    shape: tuple[int, ...]
    p: float
    order: tuple[int, ...]  # the axes, outermost in memory first: torch draws in memory's order
    unread: bool = False


@dataclass(frozen=True, slots=True)
class Settings:
    """What changes the task graph and was chosen when the graph was captured."""

    batch_dims: tuple[int | None, ...] = ()  # of each input; None: it has none
    batch_norm: str = "global"
    chunk: int = 1
    training: bool = True
    precision: str = ""  # "autocast:cuda", "autocast:cpu" or "mixed"; else in the types that the model has
