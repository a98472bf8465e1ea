"""The notation of op rules: one line of named dims that says which part of each input an output part needs.

    conv2d   sample (group in) [height] [width], (group channel) in kh kw -> sample (group channel) height width

A name on both sides is read one to one, `[x]` through an interval map that comes with the call, a name on the left
alone whole. `x!` is needed whole and cannot be split, `{x}` is combinable. `(a b)` factors an axis, outermost first;
a number stands for a dim of that size that is read whole. `*b` stands for any number of axes, aligned at the right,
and broadcasts: an axis of size 1 is read whole wherever the output has more.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from functools import cache
from math import prod

from ..errors import GraphError
from ..graph import Factor, Line, Reads, StepDim, Writes

_TOKEN = re.compile(r"\s*(\(|\)|\[\w+\]|\{\*?\w+\}|\*?\w+!?)")


@dataclass(frozen=True, slots=True)
class Name:
    text: str
    mapped: bool = False
    combined: bool = False
    whole: bool = False
    star: bool = False


Axis = tuple[Name, ...]
Pattern = tuple[Axis, ...]


@dataclass(frozen=True, slots=True)
class Map:
    """An interval map: [lo, hi) of the output's dim needs [lower(lo), upper(hi)) of the input's."""

    lower: Line
    upper: Line


@dataclass(frozen=True, slots=True)
class Bound:
    """A rule line with its sizes: what a step adds to a call."""

    dims: tuple[StepDim, ...]
    reads: tuple[Reads, ...]
    writes: tuple[Writes, ...]
    combinable: tuple[int, ...]

    def index(self, name: str) -> int:
        return next(i for i, dim in enumerate(self.dims) if dim.name == name)


def _name(token: str) -> Name:
    text = token.strip("[]{}!*")
    return Name(text, token[0] == "[", token[0] == "{", token.endswith("!"), "*" in token)


def _pattern(text: str, line: str) -> Pattern:
    axes: list[Axis] = []
    group: list[Name] | None = None
    at = 0
    text = text.strip()
    while at < len(text):
        match = _TOKEN.match(text, at)
        if not match or ((token := match[1]) == "(" and group is not None) or (token == ")" and group is None):
            raise GraphError(f"the rule {line!r} cannot be read at {text[at:]!r}")
        at = match.end()
        if token == "(":
            group = []
        elif token == ")":
            axes.append(tuple(group or ()))
            group = None
        elif group is not None:
            group.append(_name(token))
        else:
            axes.append((_name(token),))
    if group is not None:
        raise GraphError(f"the rule {line!r} lacks a closing parenthesis")
    return tuple(axes)


@cache
def parse(line: str) -> tuple[tuple[Pattern, ...], tuple[Pattern, ...]]:
    """The patterns of the inputs and of the outputs. Raises GraphError that repeats the line."""
    left, arrow, right = line.partition("->")
    if not arrow:
        raise GraphError(f"the rule {line!r} has no '->'")
    return tuple(_pattern(part, line) for part in left.split(",")), tuple(
        _pattern(part, line) for part in right.split(",")
    )


def _expand(pattern: Pattern, shape: tuple[int, ...], line: str) -> Pattern:
    """Replace stars by numbered names, counted from the right."""
    stars = sum(axis[0].star for axis in pattern if axis)
    count = len(shape) - (len(pattern) - stars)
    if count < 0 or (stars == 0 and count) or stars > 1:
        raise GraphError(f"the rule {line!r} does not fit the shape {list(shape)}")
    axes: list[Axis] = []
    for axis in pattern:
        if axis and axis[0].star:
            axes += [(replace(axis[0], text=f"{axis[0].text}.{i}", star=False),) for i in reversed(range(count))]
        else:
            axes.append(axis)
    return tuple(axes)


@dataclass(slots=True)
class _Binder:
    line: str
    sizes: dict[str, int]
    maps: dict[str, Map]
    dims: dict[str, StepDim] = field(default_factory=dict)
    combinable: list[str] = field(default_factory=list)

    def measure(self, patterns: list[Pattern], shapes: list[tuple[int, ...]]) -> None:
        """Find every name's size; an axis of size 1 yields to a larger one of the same name."""
        for pattern, shape in zip(patterns, shapes):
            for axis, size in zip(pattern, shape):
                self._measure_axis(axis, size, shape)

    def _measure_axis(self, axis: Axis, size: int, shape: tuple[int, ...]) -> None:
        unknown = [n.text for n in axis if n.text not in self.sizes and not n.text.isdigit()]
        known = prod(int(n.text) if n.text.isdigit() else self.sizes.get(n.text, 1) for n in axis)
        if len(unknown) == 1 and size % known == 0:
            self.sizes[unknown[0]] = size // known
        elif unknown:
            raise GraphError(f"the rule {self.line!r} leaves the sizes of {unknown} open for the shape {list(shape)}")
        elif known != size and not (size == 1 and len(axis) == 1) and not any(n.mapped for n in axis):
            if len(axis) == 1 and self.sizes[axis[0].text] == 1:
                self.sizes[axis[0].text] = size
            else:
                raise GraphError(f"the rule {self.line!r} does not fit the shape {list(shape)}: {size} is not {known}")

    def add(self, name: Name) -> None:
        if name.text.isdigit() or (name.mapped and name.text not in self.dims):
            return
        known = self.dims.get(name.text)
        whole = name.whole or (known is not None and known.whole)
        self.dims[name.text] = StepDim(name.text, self.sizes[name.text], whole)
        if name.combined and name.text not in self.combinable:
            self.combinable.append(name.text)

    def read(self, pattern: Pattern, shape: tuple[int, ...], number: int) -> Reads:
        index = {name: i for i, name in enumerate(self.dims)}
        return tuple(
            tuple(self._factor(name, self._local_size(name, axis, size), index, number) for name in axis)
            for axis, size in zip(pattern, shape)
        )

    def _local_size(self, name: Name, axis: Axis, size: int) -> int:
        """What the axis has of a name: its size, but where the name is mapped or broadcast, what the others leave."""
        if len(axis) > 1 and not name.mapped:
            return int(name.text) if name.text.isdigit() else self.sizes[name.text]
        return size // prod(self.sizes[other.text] for other in axis if other != name)

    def _factor(self, name: Name, size: int, index: dict[str, int], number: int) -> Factor:
        if name.text.isdigit():
            return Factor.constant(size, 0, size)
        if name.mapped:
            chosen = self.maps.get(f"{name.text}@{number}") or self.maps[name.text]
            return Factor(size, index.get(name.text, -1), chosen.lower, chosen.upper, True)
        if size != self.sizes[name.text]:
            return Factor.constant(size, 0, size)
        return Factor(size, index[name.text])

    def write(self, pattern: Pattern) -> Writes:
        index = {name: i for i, name in enumerate(self.dims)}
        return tuple(tuple(index[n.text] for n in axis if not n.text.isdigit()) for axis in pattern)


def bind(
    line: str,
    inputs: list[tuple[int, ...]],
    outputs: list[tuple[int, ...]],
    *,
    sizes: dict[str, int] | None = None,
    maps: dict[str, Map] | None = None,
) -> Bound:
    """Fit a rule line to shapes. `sizes` gives factors that shapes leave open; `maps` the interval map of each `[x]`,
    as `x`, or `x@i` for input i alone. Raises GraphError where line and shapes do not fit."""
    left, right = parse(line)
    if len(left) < len(inputs) or len(right) < len(outputs):
        raise GraphError(f"the rule {line!r} has fewer tensors than the call with shapes {inputs} -> {outputs}")
    ins = [_expand(pattern, shape, line) for pattern, shape in zip(left, inputs)]
    outs = [_expand(pattern, shape, line) for pattern, shape in zip(right, outputs)]
    binder = _Binder(line, dict(sizes or {}), maps or {})
    binder.measure(outs + ins, [*outputs, *inputs])
    for pattern in outs + ins:
        for axis in pattern:
            for name in axis:
                binder.add(name)
    reads = tuple(binder.read(pattern, shape, i) for i, (pattern, shape) in enumerate(zip(ins, inputs)))
    writes = tuple(binder.write(pattern) for pattern in outs)
    names = list(binder.dims)
    return Bound(tuple(binder.dims.values()), reads, writes, tuple(names.index(n) for n in binder.combinable))
