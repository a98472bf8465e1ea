"""The graph of one microbatch: the same ops on the m-th part of the samples.

Which numbers of a graph grow with the batch is followed from the inputs: an axis, or some digits of one that others are
folded into, *carries* the samples; a step's dim that reads such digits does, and so does what it writes. Constants that
meet them, such as a recurrent layer's first state, are found the other way, from a step's dims to all that it reads.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any, NamedTuple

from ..errors import GraphError
from ..files import shortened
from .operator_graph import OperatorGraph
from .ops import ITEM_SIZES, Draw, Factor, Op, Step, Tensor, Value


@dataclass(frozen=True, slots=True)
class Digits:
    """Of an index: those that count samples, each of so many `inner` elements."""

    inner: int
    size: int

    def within(self, inner: int, size: int) -> Digits | None:
        """The same of a factor that has them all."""
        has_all = self.inner % inner == 0 and (inner * size) % (self.inner * self.size) == 0
        return Digits(self.inner // inner, self.size) if has_all else None


Axes = dict[int, Digits]  # by axis
Sizes = tuple[int, ...]


def microbatch(graph: OperatorGraph, count: int) -> OperatorGraph:
    """The graph of one of so many microbatches. Raises GraphError where the batch does not divide, or its samples meet
    other than in a sum. Where a microbatch is one sample, its dim stays, with size 1."""
    if not 1 <= count < 2**31:
        raise GraphError(f"a batch cannot be cut into {shortened(count)} microbatches; use a divisor of it")
    if count > 1 and all(axis is None for axis in graph.settings.batch_dims):
        raise GraphError("no input of the graph has an axis of samples, so there is no batch to cut")
    if count == 1:
        return graph
    if count not in graph.cuts:
        cut = _Cut(graph, count)
        cut.joins()
        graph.cuts[count] = cut.graph()
    return graph.cuts[count]


def reduction(graph: OperatorGraph) -> str:
    """How the losses of microbatches make the loss of a batch: by their "mean", or their "sum". Raises GraphError where
    neither does."""
    if all(axis is None for axis in graph.settings.batch_dims):
        return "mean"
    return _Cut(graph, 1).joins()


_SAME = {"neg", "mul", "div", "add", "sub", "view", "reshape", "_to_copy", "clone", "alias", "expand", "squeeze",
         "unsqueeze", "sum", "mean", "flatten", "permute", "transpose"}  # fmt: skip
_BY_ANOTHER = {"add", "sub"}  # of two numbers that samples became


def _way(step: Step) -> str | None:
    """How a step makes one number of samples, where it does so by a sum or a mean."""
    if step.kind == "sum" or step.args.get("reduction") == 2:
        return "sum"
    return "mean" if step.kind == "mean" or step.args.get("reduction") == 1 else None


class _Cut:
    """First which axes, and which dims of steps, carry samples; then the graph with these cut."""

    def __init__(self, graph: OperatorGraph, count: int) -> None:
        self._whole, self._count = graph, count
        self._tensors: list[Axes] = [{} for _ in graph.tensors]
        self._values: list[list[Axes]] = [[{} for _ in op.values] for op in graph.ops]
        self._dims: list[list[dict[int, Digits]]] = [[{} for _ in op.steps] for op in graph.ops]
        for tensor, axis in zip(graph.inputs, graph.settings.batch_dims):
            if axis is not None:
                self._tensors[tensor][axis] = Digits(1, self._samples(tensor, axis))
        self._changed = True
        while self._changed:
            self._changed = False
            for index in range(len(graph.ops)):
                self._follow(index)

    def _samples(self, tensor: int, axis: int) -> int:
        size = self._whole.tensors[tensor].shape[axis]
        if size % self._count:
            raise GraphError(f"a batch of {size} cannot be cut into {self._count} microbatches; use a divisor of it")
        return size

    # Following

    def _follow(self, index: int) -> None:
        op, values = self._whole.ops[index], self._values[index]
        for operand in (*op.inputs, *op.outputs):
            self._pass_on(values[operand.value], self._tensors[operand.tensor], op)
        for number, step in enumerate(op.steps):
            self._through(op, step, values, self._dims[index][number])
        for operand in (*op.inputs, *op.outputs):
            self._pass_on(self._tensors[operand.tensor], values[operand.value], op)

    def _pass_on(self, known: Axes, found: Axes, op: Op) -> None:
        for axis, digits in found.items():
            self._note(known, axis, digits, op)

    def _note(self, known: dict[int, Digits], at: int, digits: Digits, op: Op) -> None:
        if at not in known:
            known[at] = digits
            self._changed = True
        elif known[at] != digits:
            raise _meeting(op)

    def _through(self, op: Op, step: Step, values: list[Axes], dims: dict[int, Digits]) -> None:
        """From what a step reads and writes to its dims, and back."""
        places = list(_places(step))
        for value, axis in {(place.value, place.axis): None for place in places}:
            if axis in values[value]:
                self._note(dims, *_taking(op, step, values[value][axis], value, axis, places), op)
        if len(dims) > 1 or any(step.dims[dim].whole for dim in dims):
            raise _meeting(op)
        for value, axis, dim, inner, size in places:
            if dim in dims and size == step.dims[dim].size:
                self._note(values[value], axis, Digits(dims[dim].inner * inner, dims[dim].size), op)

    def joins(self) -> str:
        """Follow what samples became to the loss, which must be linear in it."""
        whole, known = self._whole, dict[int, str]()  # by tensor
        for op, values, dims in zip(whole.ops, self._values, self._dims):
            own = {operand.value: known[operand.tensor] for operand in op.inputs if operand.tensor in known}
            for step, carrying in zip(op.steps, dims):
                meets = carrying and not any(values[output] for output in step.outputs)
                way = _way(step) if meets else self._after(step, own)
                if way is not None:
                    own.update(dict.fromkeys(step.outputs, way))
                elif meets or any(value in own for value in step.inputs):
                    raise _unjoined(op)
            known.update({operand.tensor: own[operand.value] for operand in op.outputs if operand.value in own})
        return known.get(whole.loss, "mean")

    @staticmethod
    def _after(step: Step, known: dict[int, str]) -> str | None:
        """What a step makes of numbers that samples became; None where it is not linear in them."""
        ways = [known[value] for value in step.inputs if value in known]
        if not ways or step.kind not in _SAME or (len(ways) > 1 and step.kind not in _BY_ANOTHER):
            return None
        divides = step.kind == "div" and step.inputs[0] not in known
        shifts = step.kind in _BY_ANOTHER and len(ways) < 2 and ways[0] == "sum"
        return None if divides or shifts or len(set(ways)) > 1 else ways[0]

    # Cutting

    def graph(self) -> OperatorGraph:
        whole = self._whole
        draws = list(whole.draws)
        ops = tuple(self._op(index, draws) for index in range(len(whole.ops)))
        tensors = tuple(self._tensor(tensor, axes) for tensor, axes in zip(whole.tensors, self._tensors))
        return replace(whole, ops=ops, tensors=tensors, draws=tuple(draws))

    def _tensor(self, tensor: Tensor, axes: Axes) -> Tensor:
        if axes and tensor.source in ("parameter", "buffer"):
            raise GraphError(f"{tensor.name} has a number for each sample of the batch, which cannot be cut then")
        data = self._data(tensor, axes) if axes and tensor.data is not None else tensor.data
        return replace(tensor, shape=self._shape(tensor.shape, axes), data=data)

    def _data(self, tensor: Tensor, axes: Axes) -> str:
        """Of a constant that is the same for each microbatch: positions, say, or a mask."""
        assert tensor.data is not None
        raw, shape = base64.b64decode(tensor.data), list(tensor.shape)
        for axis, digits in axes.items():
            size = digits.inner * digits.size * prod(shape[axis + 1 :]) * ITEM_SIZES[tensor.dtype]
            blocks, part = [raw[at : at + size] for at in range(0, len(raw), size)], size // self._count
            if any(block != block[:part] * self._count for block in blocks):
                raise GraphError(
                    f"the constant {tensor.name} differs from sample to sample; make it an input of the model"
                )
            raw = b"".join(block[:part] for block in blocks)
            shape[axis] //= self._count
        return base64.b64encode(raw).decode()

    def _shape(self, shape: Sizes, axes: Axes) -> Sizes:
        return tuple(n // self._count if axis in axes else n for axis, n in enumerate(shape))

    def _op(self, index: int, draws: list[Draw]) -> Op:
        op, values, dims = self._whole.ops[index], self._values[index], self._dims[index]
        steps = []
        for number, step in enumerate(op.steps):
            steps.append(self._step(op, step, values, dims[number]))
            if "draw" in step.args:
                drawn = self._whole.draws[step.args["draw"]]
                draws[step.args["draw"]] = replace(drawn, shape=self._shape(drawn.shape, values[step.outputs[0]]))
        per_sample = any(dims) and not any("batch_norm" in step.kind for step in op.steps)  # which keeps its statistics
        return replace(
            op,
            values=tuple(self._value(value, axes, op) for value, axes in zip(op.values, values)),
            steps=tuple(steps),
            dims=tuple(replace(d, size=self._size(d.size, d.step_dim in dims[d.step])) for d in op.dims),
            flops=sum(step.flops for step in steps),
            extra=self._size(op.extra, per_sample),
        )

    def _size(self, size: int, is_cut: bool) -> int:
        return size // self._count if is_cut else size

    def _value(self, value: Value, axes: Axes, op: Op) -> Value:
        factoring = [
            self._factors(factors, axes[axis], op) if axis in axes else factors
            for axis, factors in enumerate(value.factoring)
        ]
        return replace(value, shape=self._shape(value.shape, axes), factoring=tuple(factoring))

    def _factors(self, factors: Sizes, digits: Digits, op: Op) -> Sizes:
        """The outermost of those that the digits lie in shrinks."""
        found = next(
            (i for i, size in enumerate(factors) if digits.inner * digits.size > prod(factors[i + 1 :]) and size > 1), 0
        )
        if factors[found] % self._count:
            raise GraphError(f"{op.name} folds the samples, so that {self._count} microbatches would cut through one")
        return (*factors[:found], factors[found] // self._count, *factors[found + 1 :])

    def _step(self, op: Op, step: Step, values: list[Axes], dims: dict[int, Digits]) -> Step:
        reads = tuple(tuple(tuple(self._read(op, f, dims) for f in axis) for axis in read) for read in step.reads)
        return replace(
            step,
            args=self._arguments(op, step, values),
            dims=tuple(replace(d, size=self._size(d.size, i in dims)) for i, d in enumerate(step.dims)),
            reads=reads,
            flops=self._size(step.flops, bool(dims)),
        )

    def _read(self, op: Op, factor: Factor, dims: dict[int, Digits]) -> Factor:
        if factor.dim not in dims or factor.size == 1:
            return factor
        if factor.lower != (1, 0, 1) or factor.upper != (1, 0, 1):
            raise _meeting(op)
        return replace(factor, size=self._size(factor.size, True))

    def _arguments(self, op: Op, step: Step, values: list[Axes]) -> dict[str, Any]:
        """A shape among the arguments is that of what the step makes, perhaps with -1 for some axes."""
        made, given = op.values[step.outputs[0]].shape, step.args.get("size")
        if given is None or len(given) != len(made):
            return step.args
        cut = self._shape(made, values[step.outputs[0]])
        return step.args | {"size": [small if n == whole else n for n, whole, small in zip(given, made, cut)]}


class _Place(NamedTuple):
    """Where a dim of a step lies in an axis of a value; -1: what the step reads whatever the part."""

    value: int
    axis: int
    dim: int
    inner: int  # elements inside of it
    size: int


def _places(step: Step) -> Iterator[_Place]:
    for value, read in zip(step.inputs, step.reads):
        for axis, factors in enumerate(read):
            yield from _along(value, axis, [(factor.dim, factor.size) for factor in factors])
    for value, written in zip(step.outputs, step.writes):
        for axis, dims in enumerate(written):
            yield from _along(value, axis, [(dim, step.dims[dim].size) for dim in dims])


def _along(value: int, axis: int, parts: Sequence[tuple[int, int]]) -> Iterator[_Place]:
    inner = 1
    for dim, size in reversed(parts):
        yield _Place(value, axis, dim, inner, size)
        inner *= size


def _taking(op: Op, step: Step, digits: Digits, value: int, axis: int, places: Sequence[_Place]) -> tuple[int, Digits]:
    """The dim that takes all of an axis' samples, and which of its digits they are."""
    own = [place for place in places if (place.value, place.axis) == (value, axis)]
    found = {(place.dim, inside) for place in own if (inside := digits.within(place.inner, place.size)) is not None}
    dim, inside = min(found, default=(-1, digits), key=lambda pair: pair[0])
    if len(found) > 1 or dim < 0 or step.dims[dim].size % digits.size:
        raise _meeting(op)
    return dim, inside


def _unjoined(op: Op) -> GraphError:
    return GraphError(f"with {op.name} the loss is no sum or mean over samples, so microbatches would not add up to it")


def _meeting(op: Op) -> GraphError:
    return GraphError(f"samples of a batch meet one another in {op.name}, so microbatches would not compute the same")
