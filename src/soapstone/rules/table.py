"""A rule: a line of notation and the facts that go with it; and the table that finds one for a call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any, Literal

from ..graph import Combine
from .notation import Bound, Map, bind

Shape = tuple[int, ...]
Extents = dict[str, int]
# Whose costs a kernel has. Reductions and copies are pointwise, too: as fast as memory.
Family = Literal["dense", "conv", "attention", "cell", "batch_norm", "norm", "pool", "table", "pointwise"]


@dataclass(frozen=True)
class Call:
    """One call of torch's, as the tracer saw it: what each input fills, the shapes, and the other arguments."""

    kind: str
    overload: str
    slots: tuple[str, ...]
    shapes: tuple[Shape, ...]
    outputs: tuple[Shape, ...]
    args: dict[str, Any] = field(default_factory=dict)

    def shape(self, slot: str) -> Shape:
        return self.shapes[self.slots.index(slot)]

    def axis(self, name: str = "dim") -> int:
        """An argument that numbers an axis of the first input, counted from the front."""
        return int(self.args[name]) % max(len(self.shapes[0]), 1)


@dataclass(frozen=True)
class Partial:
    """The `{x}` side of a rule: how partials combine, the dims that one spans (None: the output's), and whether the
    step has more to do after the combine."""

    mode: str = "sum"
    spans: tuple[str, ...] | None = None
    factor: int = 1
    finish: Callable[[Call], bool] = lambda call: False


@dataclass(frozen=True)
class Lookup:
    """The input that holds indices, and the dim that they count; with `rows`, what comes out is all that is read of the
    first input."""

    slot: str
    dim: str
    rows: bool = False


Count = Callable[[Call, Extents], int]


def times(factor: int) -> Count:
    """So many flops for each point of the step's dims."""
    return lambda call, extents: factor * prod(extents.values())


Bytes = Callable[[Call, int], int]  # given the size of an item


def items(factor: float, slot: str = "") -> Bytes:
    """So many items for each element of an input, or else of the first output."""
    return lambda call, item: round(factor * prod(call.shape(slot) if slot else call.outputs[0])) * item


@dataclass(frozen=True)
class Rule:
    """`line` is notation, or makes it from the call; with `slots`, its inputs are those slots and absent ones drop
    out. `saves` says what torch keeps for backward: "inputs", "outputs", "both", "nothing", "factors" (each input that
    another input's gradient needs), or some slots; `extra` is bytes besides.

    What else is special about an op is a field here, too, and found by the kind that a graph knows it by."""

    line: str | Callable[[Call], str]
    family: Family
    slots: tuple[str, ...] = ()
    sizes: Callable[[Call], dict[str, int]] = lambda call: {}
    maps: Callable[[Call], dict[str, Map]] = lambda call: {}
    partial: Partial | None = None
    flops: Count = lambda call, extents: prod(extents.values())
    saves: str = "inputs"
    extra: Bytes = lambda call, item: 0
    heavy: bool = False  # heads an op of its own
    shape: bool = False  # only moves elements
    copies: bool = False  # a shape op that writes its output; the others only rename elements
    joins: bool = False  # puts several tensors together
    statistics: bool = False  # computes something from all the elements that it is given
    tiled: bool = False  # a product that computes whole tiles, however thin it is
    draws: bool = False  # a mask at random, in each step
    detaches: bool = False  # its output has no gradient
    lookup: Lookup | None = None
    num_outputs: int | None = None  # of torch's, without masks and saved statistics; None: all
    name: str = ""  # what the op is called, where torch's own name says too much

    def bind(self, call: Call) -> tuple[Bound, Combine | None]:
        line = self.line if isinstance(self.line, str) else self.line(call)
        if self.slots:
            left, _, right = line.partition("->")
            patterns = dict(zip(self.slots, left.split(",")))
            line = ",".join(patterns[slot] for slot in call.slots) + "->" + right
        bound = bind(line, list(call.shapes), list(call.outputs), sizes=self.sizes(call), maps=self.maps(call))
        return bound, self._combine(call, bound)

    def saved(self, call: Call, grads: Sequence[bool]) -> tuple[list[int], list[int]]:
        """Which inputs and outputs stay until backward, given which inputs have gradients."""
        inputs, outputs = range(len(call.slots)), range(len(call.outputs))
        if self.saves == "factors":
            return [i for i in inputs if any(grads[:i]) or any(grads[i + 1 :])], []
        whole = {"inputs": (inputs, []), "outputs": ([], outputs), "both": (inputs, outputs), "nothing": ([], [])}
        if self.saves in whole:
            kept, made = whole[self.saves]
            return list(kept), list(made)
        return [i for i, slot in enumerate(call.slots) if slot.partition(".")[0] in self.saves.split()], []

    def _combine(self, call: Call, bound: Bound) -> Combine | None:
        if self.partial is None or not bound.combinable:
            return None
        spans = self.partial.spans
        written = {dim for write in bound.writes for axis in write for dim in axis}
        dims = sorted(written) if spans is None else [i for i, d in enumerate(bound.dims) if d.name in spans]
        return Combine(self.partial.mode, bound.combinable, tuple(dims), self.partial.factor, self.partial.finish(call))


def whole(call: Call) -> str:
    """The line of a call without a rule: every axis is needed whole."""
    count = iter(range(10**6))
    sides = [
        ", ".join(" ".join(f"x{next(count)}!" for _ in shape) for shape in shapes)
        for shapes in (call.shapes, call.outputs)
    ]
    return " -> ".join(sides)


UNRULED = Rule(
    whole, family="pointwise", flops=lambda call, extents: sum(map(prod, call.outputs)), saves="both", heavy=True
)
POINTWISE = Rule(lambda call: ", ".join(["*b"] * len(call.shapes)) + " -> *b", family="pointwise")
