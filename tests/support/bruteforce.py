"""What each part of each op reads, element by element, from torch's own definitions and without the core's geometry.

A point is one coordinate along each of an op's dims: one element of every output and, where combinable dims are in no
output, one place along them. A function a kind of step says which input elements a point of that step reads; they
are followed back through the steps of an op. A part is a set of points and reads what its points read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import product
from math import prod

import numpy as np
import numpy.typing as npt

from soapstone.graph import ITEM_SIZES, Op, OperatorGraph, Step
from soapstone.strategy import Strategy

Element = tuple[int, ...]
Reads = Iterator[tuple[str, Element]]  # (slot, element)
Box = list[tuple[int, int]]
Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Site:
    """One element of one output of a step; `extra` places it along dims that no output has."""

    step: Step
    shapes: dict[str, tuple[int, ...]]
    output: int
    shape: tuple[int, ...]  # of that output
    at: Element
    extra: dict[str, int]

    def along(self, dim: str, size: int) -> Iterable[int]:
        return [self.extra[dim]] if dim in self.extra else range(size)

    def pair(self, name: str) -> tuple[int, int]:
        value = self.step.args[name]
        return (value[0], value[-1])

    def axis(self, slot: str) -> int:
        return int(self.step.args["dim"]) % len(self.shapes[slot])


def _linear(s: Site) -> Reads:
    *batch, channel = s.at
    for k in s.along("in", s.shapes["weight"][1]):
        yield "input", (*batch, k)
        yield "weight", (channel, k)
    yield "bias", (channel,)


def _embedding(s: Site) -> Reads:
    """Which row is read depends on the data, so that every row may be."""
    *batch, channel = s.at
    yield "indices", tuple(batch)
    for row in s.along("vocab", s.shapes["weight"][0]):
        yield "weight", (row, channel)


def _window(out: int, size: int, kernel: int, stride: int, before: int, dilation: int) -> range:
    """From the first to the last element under a window: a dilated one is fetched with its gaps."""
    first = out * stride - before
    return range(max(first, 0), min(first + dilation * (kernel - 1) + 1, size))


def _windows(s: Site, slot: str, kernel: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    stride, before = s.pair("stride"), s.pair("padding")
    dilation = s.pair("dilation") if "dilation" in s.step.args else (1, 1)
    facts = zip(s.at[-2:], s.shapes[slot][-2:], kernel, stride, before, dilation)
    return product(*(_window(*fact) for fact in facts))


def _conv2d(s: Site) -> Reads:
    sample, channel = s.at[:2]
    num_channels, per_group, *kernel = s.shapes["weight"]
    group = channel // (num_channels // s.step.args["groups"])
    for y, x in _windows(s, "input", tuple(kernel)):
        for k in range(per_group):
            yield "input", (sample, group * per_group + k, y, x)
    for rest in product(range(per_group), *map(range, kernel)):
        yield "weight", (channel, *rest)
    yield "bias", (channel,)


def _pool2d(s: Site) -> Reads:
    for where in _windows(s, "self", s.pair("kernel_size")):
        yield "self", (*s.at[:-2], *where)


def _batch_norm(s: Site) -> Reads:
    """The statistics of other elements come with the combine."""
    yield "input", s.at
    for slot in ("weight", "bias", "running_mean", "running_var"):
        yield slot, (s.at[1],)


def _pointwise(s: Site) -> Reads:
    for slot, shape in s.shapes.items():
        yield slot, tuple(0 if n == 1 else i for i, n in zip(s.at[len(s.at) - len(shape) :], shape))


def _broadcast_tensors(s: Site) -> Reads:
    wanted = f"tensors.{s.output}"
    yield from ((slot, element) for slot, element in _pointwise(s) if slot == wanted)


def _lstm_cell(s: Site) -> Reads:
    sample, unit = s.at
    hidden = s.shapes["hx.1"][1]
    yield "hx.1", (sample, unit)
    for slot, weight, bias in (("input", "w_ih", "b_ih"), ("hx.0", "w_hh", "b_hh")):
        for k in range(s.shapes[slot][1]):
            yield slot, (sample, k)
            for gate in range(4):
                yield weight, (gate * hidden + unit, k)
        for gate in range(4):
            yield bias, (gate * hidden + unit,)


def _softmax(s: Site) -> Reads:
    """An element needs its axis whole."""
    axis = s.axis("self")
    for k in range(s.shapes["self"][axis]):
        yield "self", (*s.at[:axis], k, *s.at[axis + 1 :])


def _class_loss(s: Site) -> Reads:
    """A sample's score needs its target and the part's classes."""
    sample, *where = s.at
    yield "target", s.at
    for k in s.along("class", s.shapes["self"][1]):
        yield "self", (sample, k, *where)


def _class_mean(s: Site) -> Reads:
    shape = s.shapes["self"]
    for where in product(*(s.along(f"b.{len(shape) - 1 - i}", n) for i, n in enumerate(shape))):
        yield "self", where
        yield "target", where


def _mse_loss(s: Site) -> Reads:
    shape = s.shapes["self"]
    for where in product(*(s.along(f"b.{len(shape) - 1 - i}", n) for i, n in enumerate(shape))):
        yield "self", where
        yield "target", where


def _sum(s: Site) -> Reads:
    for where in product(*(s.along(f"r{i}", n) for i, n in enumerate(s.shapes["self"]))):
        yield "self", where


def _view(s: Site) -> Reads:
    flat = np.ravel_multi_index(s.at, s.shape) if s.at else 0
    yield "self", tuple(int(i) for i in np.unravel_index(flat, s.shapes["self"]))


def _transpose(s: Site) -> Reads:
    at = list(s.at)
    a, b = s.step.args["dim0"], s.step.args["dim1"]
    at[a], at[b] = at[b], at[a]
    yield "self", tuple(at)


def _select(s: Site) -> Reads:
    axis = s.axis("self")
    yield "self", (*s.at[:axis], s.step.args["index"] % s.shapes["self"][axis], *s.at[axis:])


def _slice(s: Site) -> Reads:
    axis = s.axis("self")
    place = (s.step.args.get("start") or 0) + s.at[axis] * s.step.args.get("step", 1)
    yield "self", (*s.at[:axis], place, *s.at[axis + 1 :])


def _cat(s: Site) -> Reads:
    axis = s.axis("tensors.0")
    place = s.at[axis]
    for slot, shape in s.shapes.items():
        if 0 <= place < shape[axis]:
            yield slot, (*s.at[:axis], place, *s.at[axis + 1 :])
        place -= shape[axis]


def _stack(s: Site) -> Reads:
    axis = int(s.step.args["dim"]) % len(s.at)
    yield f"tensors.{s.at[axis]}", (*s.at[:axis], *s.at[axis + 1 :])


SEMANTICS: dict[str, Callable[[Site], Reads]] = {
    "linear": _linear,
    "embedding": _embedding,
    "conv2d": _conv2d,
    "max_pool2d": _pool2d,
    "avg_pool2d": _pool2d,
    "_native_batch_norm_legit_functional": _batch_norm,
    "lstm_cell": _lstm_cell,
    "softmax": _softmax,
    "class_loss": _class_loss,
    "class_mean": _class_mean,
    "mse_loss": _mse_loss,
    "sum": _sum,
    "view": _view,
    "transpose": _transpose,
    "select": _select,
    "slice": _slice,
    "cat": _cat,
    "stack": _stack,
    "broadcast_tensors": _broadcast_tensors,
    **dict.fromkeys(("relu", "tanh", "add", "mul", "native_dropout"), _pointwise),
}


class OpReads:
    """By point of one op: the element of each output that it makes, and the elements of each input that it reads."""

    def __init__(self, op: Op) -> None:
        self.op, self.sizes = op, [dim.size for dim in op.dims]
        num_points = prod(self.sizes)
        self.last = next(i for i, step in enumerate(op.steps) if op.outputs[0].value in step.outputs)
        self.makes = [np.zeros(num_points, np.int64) for _ in op.outputs]
        self.reads = [np.zeros((num_points, prod(op.values[i.value].shape)), np.bool_) for i in op.inputs]
        for point, where in enumerate(product(*map(range, self.sizes))):
            made, read = self._follow(where)
            for output, operand in zip(self.makes, op.outputs):
                output[point] = self._flat(operand.value, made[operand.value])
            for matrix, operand in zip(self.reads, op.inputs):
                matrix[point, [self._flat(operand.value, element) for element in read[operand.value]]] = True

    def _flat(self, value: int, element: Element) -> int:
        flat = 0
        for i, n in zip(element, self.op.values[value].shape, strict=True):
            assert 0 <= i < n
            flat = flat * n + i
        return flat

    def _follow(self, where: Element) -> tuple[dict[int, Element], list[set[Element]]]:
        steps = self.op.steps
        at: list[dict[int, int]] = [{} for _ in steps]
        for i, dim in zip(where, self.op.dims):
            at[dim.step][dim.step_dim] = i
        extras = [{steps[d.step].dims[d.step_dim].name: i} for i, d in zip(where, self.op.dims) if d.extra]
        extra = {name: i for each in extras for name, i in each.items()}
        wanted: list[set[Element]] = [set() for _ in self.op.values]
        last, made = steps[self.last], {}
        for value, write in zip(last.outputs, last.writes):
            made[value] = tuple(_digits([(at[self.last][d], last.dims[d].size) for d in axis]) for axis in write)
            wanted[value].add(made[value])
        for s, step in reversed(list(enumerate(steps))):
            shapes = {slot: self.op.values[value].shape for slot, value in zip(step.slots, step.inputs)}
            value_of = dict(zip(step.slots, step.inputs))
            for output, value in enumerate(step.outputs):
                for element in wanted[value]:
                    shape = self.op.values[value].shape
                    site = Site(step, shapes, output, shape, element, extra if s == self.op.head else {})
                    for slot, read in SEMANTICS[step.kind](site):
                        if slot in value_of:
                            wanted[value_of[slot]].add(read)
        return made, wanted

    def points(self, degrees: list[int]) -> list[npt.NDArray[np.int64]]:
        """The points of each part, in row-major order of the parts."""
        cuts = [[slice(i * n // d, (i + 1) * n // d) for i in range(d)] for n, d in zip(self.sizes, degrees)]
        grid = np.arange(prod(self.sizes)).reshape(self.sizes)
        return [grid[part].ravel() for part in product(*cuts)]


def _digits(digits: list[tuple[int, int]]) -> int:
    number = 0
    for digit, base in digits:
        number = number * base + digit
    return number


@dataclass
class ExpectedFlow:
    """What one device reads of one output part of a tensor, and from where it has that."""

    source: int
    elements: Mask
    readers: list[tuple[int, int]] = field(default_factory=list)


class Expected:
    """What the elements say about one strategy."""

    def __init__(self, graph: OperatorGraph, ops: list[OpReads], strategy: Strategy) -> None:
        self.graph = graph
        self.degrees = [strategy[op.name].degrees_of(op) for op in graph.ops]
        self.devices = [strategy[op.name].devices for op in graph.ops]
        self.makes = [reads.makes for reads in ops]
        self.points = [reads.points(degrees) for reads, degrees in zip(ops, self.degrees)]
        self.copies = [
            prod(n for n, d in zip(degrees, op.dims) if d.extra) for degrees, op in zip(self.degrees, graph.ops)
        ]
        self.read: dict[int, list[tuple[int, int, Mask]]] = {t: [] for t in range(len(graph.tensors))}
        for o, op in enumerate(graph.ops):
            for number, operand in enumerate(op.inputs):
                for part, points in enumerate(self.points[o]):
                    read: Mask = np.any(ops[o].reads[number][points], axis=0)
                    self.read[operand.tensor].append((o, part, read))
        self.flows: dict[tuple[int, int, int], ExpectedFlow] = {}
        for o, op in enumerate(graph.ops):
            for number, operand in enumerate(op.outputs):
                self._add_flows(o, operand.tensor, self.makes[o][number])

    def _add_flows(self, o: int, tensor: int, makes: npt.NDArray[np.int64]) -> None:
        for first in range(0, len(self.points[o]), self.copies[o]):
            part, holders = first // self.copies[o], self.devices[o][first : first + self.copies[o]]
            owned = np.zeros(prod(self.graph.tensors[tensor].shape), np.bool_)
            owned[makes[self.points[o][first]]] = True
            for reader, reader_part, read in self.read[tensor]:
                if not (owned & read).any():
                    continue
                device = self.devices[reader][reader_part]
                source = device if device in holders else holders[0]
                fresh = ExpectedFlow(source, np.zeros_like(owned))
                flow = self.flows.setdefault((tensor, part, device), fresh)
                flow.elements |= owned & read
                flow.readers.append((reader, reader_part))

    def hull(self, tensor: int, elements: Mask) -> Box:
        """The smallest box that holds the elements, over the dims that the core factors the tensor into."""
        sizes = [n for axis in self.graph.native.factoring(tensor) for n in axis]
        places = np.unravel_index(np.flatnonzero(elements), sizes) if sizes else ()
        return [(int(place.min()), int(place.max()) + 1) for place in places]

    def bytes(self, tensor: int, elements: Mask) -> int:
        return prod(hi - lo for lo, hi in self.hull(tensor, elements)) * ITEM_SIZES[self.graph.tensors[tensor].dtype]

    def pieces(self, tensor: int) -> dict[tuple[int, ...], set[int]]:
        """A parameter's elements by the devices that read them."""
        pieces: dict[tuple[int, ...], set[int]] = {}
        for element in range(prod(self.graph.tensors[tensor].shape)):
            holders = {self.devices[o][part] for o, part, read in self.read[tensor] if read[element]}
            if holders:
                pieces.setdefault(tuple(sorted(holders)), set()).add(element)
        return pieces
