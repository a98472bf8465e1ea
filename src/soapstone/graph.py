"""What a model computes: ops over tensors, each op a few steps that say which part of their inputs they need.

A step is one call of torch's. Its dims are the named factors of the axes that it writes, then those that only its
inputs have. `writes` names the dims of each output axis; `reads` gives, for each dim of each input axis, an interval
map from one of the step's dims. An op is one heavy step, its head, with the shape steps before it and the cheap
steps behind it; its own dims are those of the step that it ends with, then the head's combinable ones.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from functools import cached_property
from math import prod
from pathlib import Path
from typing import Any

from . import _core
from .errors import GraphError
from .files import decode, encode, read_json, write_atomically

FORMAT = 1
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
    `factor` numbers an element; `finish` says that the head itself has more to do behind the combine."""

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

    def sizes(self, box: list[tuple[int, int]]) -> dict[str, int]:
        """Local extents by dim name; a refined dim counts with all its factors."""
        extents: dict[str, int] = {}
        for dim, (lo, hi) in zip(self.dims, box):
            extents[dim.name] = extents.get(dim.name, 1) * (hi - lo)
        return extents


@dataclass(frozen=True, slots=True)
class Value:
    """A tensor inside an op, with the dims that its axes are factored into there."""

    shape: tuple[int, ...]
    dtype: str
    factoring: tuple[tuple[int, ...], ...]


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
    updates: tuple[Operand, ...] = ()  # a buffer's next value, by the head's extra output

    def __str__(self) -> str:
        return f"{self.name}: {self.kind} [{', '.join(map(str, self.dims))}]"

    @property
    def combine(self) -> Combine | None:
        return self.steps[self.head].combine

    @property
    def finishes(self) -> bool:
        """Whether anything is left to do behind a combine."""
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
    """A dropout's mask, drawn in each step, whether the loss needs it or not."""

    shape: tuple[int, ...]
    p: float
    order: tuple[int, ...]  # the axes, outermost in memory first: torch draws in memory's order


@dataclass(frozen=True, slots=True)
class Settings:
    """What changes the task graph and was chosen when the graph was captured."""

    batch_dim: int = 0
    batch_norm: str = "global"
    chunk: int = 1
    training: bool = True


@dataclass(frozen=True)
class OperatorGraph:
    tensors: tuple[Tensor, ...]
    ops: tuple[Op, ...]
    inputs: tuple[int, ...]  # the tensors that `step` takes, in order
    loss: int
    settings: Settings = Settings()
    aliases: dict[str, str] = field(default_factory=dict, hash=False)  # tied name -> the name kept
    counters: tuple[str, ...] = ()  # buffers that count steps
    unruled: tuple[str, ...] = ()  # kinds without a rule, which stay whole
    draws: tuple[Draw, ...] = ()  # in eager order; a step's "draw" is its place here

    def __repr__(self) -> str:
        return f"OperatorGraph({len(self.ops)} ops, {len(self.parameters)} parameters, {self.fingerprint})"

    @cached_property
    def _index(self) -> dict[str, int]:
        return {op.name: i for i, op in enumerate(self.ops)}

    def __contains__(self, name: object) -> bool:
        return name in self._index

    def index(self, name: str) -> int:
        """The op's place in `ops`. Raises GraphError for an unknown name."""
        if name not in self._index:
            raise GraphError(f"the graph has no op {name!r}; it has {', '.join(list(self._index)[:8])}, ...")
        return self._index[name]

    def op(self, name: str) -> Op:
        return self.ops[self.index(name)]

    @property
    def parameters(self) -> tuple[Tensor, ...]:
        return tuple(t for t in self.tensors if t.source == "parameter")

    @cached_property
    def fingerprint(self) -> str:
        text = json.dumps(encode(self), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    @cached_property
    def native(self) -> _core.Graph:
        native = _core.Graph()
        sources = {"op": 0, "input": 1, "constant": 1, "parameter": 2, "buffer": 2}  # shards, trained or not
        for t in self.tensors:
            if t.source not in sources:
                raise ValueError(f"tensor {t.name!r} has the unknown source {t.source!r}")
            native.add_tensor(sources[t.source], ITEM_SIZES[t.dtype], t.grad, [[n] for n in t.shape])
        for op in self.ops:
            _add_op(native, op)
        return native

    def save(self, path: str | Path) -> None:
        """Write the graph as JSON; `load` needs neither the model nor torch."""
        write_atomically(path, json.dumps({"format": FORMAT, "kind": "soapstone graph", **encode(self)}))

    @classmethod
    def load(cls, path: str | Path) -> OperatorGraph:
        """Read a saved graph. Raises GraphError that names what is wrong with the file."""
        data = read_json(path)
        if not isinstance(data, dict) or data.pop("kind", None) != "soapstone graph":
            raise GraphError(f"{path} is not a saved graph; write one with graph.save(path)")
        if (found := data.pop("format", None)) != FORMAT:
            raise GraphError(f"{path} has graph format {found}, this version reads {FORMAT}; capture the model anew")
        try:
            graph: OperatorGraph = decode(cls, data, "graph")
            _check(graph)
        except (ValueError, TypeError, OverflowError) as error:
            reason = str(error) if isinstance(error, ValueError) else "a number is out of range"
            raise GraphError(f"{path} is damaged: {reason}; capture the model anew") from None
        return graph


def _check(graph: OperatorGraph) -> None:
    """Raise ValueError where a graph does not hold together; the core checks the ops."""
    for tensor in graph.tensors:
        if tensor.dtype not in ITEM_SIZES:
            raise ValueError(f"tensor {tensor.name!r} has the unknown dtype {tensor.dtype!r}")
    if len({op.name for op in graph.ops}) != len(graph.ops):
        raise ValueError("two ops have one name")
    for index in (*graph.inputs, graph.loss, *(o.tensor for op in graph.ops for o in op.updates)):
        if not 0 <= index < len(graph.tensors):
            raise ValueError(f"there is no tensor {index}")
    if graph.tensors[graph.loss].source != "op" or not any(
        o.tensor == graph.loss for op in graph.ops for o in op.outputs
    ):
        raise ValueError("no op makes the loss")
    graph.native  # noqa: B018  builds the core's graph, which checks all indices inside ops


def _add_op(native: _core.Graph, op: Op) -> None:
    steps = [
        (
            list(step.inputs),
            list(step.outputs),
            [d.size for d in step.dims],
            [d.whole for d in step.dims],
            [[[(f.size, f.dim, f.lower, f.upper) for f in axis] for axis in read] for read in step.reads],
            [[list(axis) for axis in write] for write in step.writes],
        )
        for step in op.steps
    ]
    combine = op.combine or Combine("sum", (), ())
    head_dtype = op.values[op.steps[op.head].outputs[0]].dtype
    native.add_op(
        [[list(axis) for axis in value.factoring] for value in op.values],
        steps,
        [(d.size, d.step, d.step_dim, d.combinable, d.extra) for d in op.dims],
        [(i.tensor, i.value) for i in op.inputs],
        [(o.tensor, o.value) for o in op.outputs],
        op.head,
        (op.combine is not None, combine.mode == "gather", op.finishes, list(combine.dims), combine.factor,
         ITEM_SIZES[head_dtype]),
        op.backward,
    )  # fmt: skip
