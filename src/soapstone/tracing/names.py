"""Names: of ops by module path, of layers by shared parameters, of dims by what they are read from and by whom."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Hashable
from dataclasses import replace
from math import prod

from ..graph import Dim, Op, Tensor
from .trace import TraceCall

PRIORITY = ("sample", "height", "width", "head", "length", "hidden", "channel")
UNNAMED = "length"
_PLACEHOLDER = re.compile(r"(b|s|o|j)\.\d+|[xrion]\d+|v\d+_\d+|new\d*|picked\d+")  # in generated lines


class Classes:
    """Union-find."""

    def __init__(self) -> None:
        self.parent: dict[Hashable, Hashable] = {}

    def find(self, item: Hashable) -> Hashable:
        self.parent.setdefault(item, item)
        while self.parent[item] != item:
            self.parent[item] = self.parent[self.parent[item]]
            item = self.parent[item]
        return item

    def join(self, a: Hashable, b: Hashable) -> None:
        self.parent[self.find(a)] = self.find(b)


def label(call: TraceCall) -> str:
    """What kind of op a call heads."""
    return call.rule.name or call.call.kind.strip("_")


def unique(names: list[str]) -> list[str]:
    """The same names, a number appended to each one that came before."""
    taken: set[str] = set()
    counts: Counter[str] = Counter()
    result = []
    for name in names:
        counts[name] += 1
        found = name if counts[name] == 1 else f"{name}_{counts[name]}"
        while found in taken:
            counts[name] += 1
            found = f"{name}_{counts[name]}"
        taken.add(found)
        result.append(found)
    return result


def name_layers(ops: tuple[Op, ...]) -> tuple[Op, ...]:
    """Ops that share a parameter are one layer, named after its first op."""
    classes = Classes()
    for op in ops:
        for parameter in op.parameters:
            classes.join(("op", op.name), ("parameter", parameter))
    first: dict[Hashable, str] = {}
    for op in ops:
        first.setdefault(classes.find(("op", op.name)), op.name)
    return tuple(replace(op, layer=first[classes.find(("op", op.name))]) for op in ops)


def name_dims(ops: tuple[Op, ...], tensors: tuple[Tensor, ...], batch_dims: dict[int, int]) -> tuple[Op, ...]:
    """Give the op's dims their names, and the batch's dim its kind, across the whole graph; `batch_dims` gives the
    batch's axis of each input tensor that has one."""
    classes = _link(ops, tensors)
    batch = {classes.find(("tensor", i, axis, 1, tensors[i].shape[axis])) for i, axis in batch_dims.items()}
    given: dict[Hashable, set[str]] = {root: {"sample"} for root in batch}
    weak: dict[Hashable, set[str]] = {}  # the factors of a refined dim are not each what the whole was
    for o, op in enumerate(ops):
        for s, step in enumerate(op.steps):
            counts = Counter(step_dim.name for step_dim in step.dims)
            for d, step_dim in enumerate(step.dims):
                if not _PLACEHOLDER.fullmatch(step_dim.name):
                    names = given if counts[step_dim.name] == 1 else weak
                    names.setdefault(classes.find(("dim", o, s, d)), set()).add(step_dim.name)
    named = []
    for o, op in enumerate(ops):
        roots = [classes.find(("dim", o, dim.step, dim.step_dim)) for dim in op.dims]
        chosen = unique([_choose(d, given.get(r, set()), weak.get(r, set())) for d, r in zip(op.dims, roots)])
        kinds = ["sample" if root in batch else dim.kind for dim, root in zip(op.dims, roots)]
        dims = [replace(dim, name=name, kind=kind) for dim, name, kind in zip(op.dims, chosen, kinds)]
        named.append(replace(op, dims=tuple(dims)))
    return tuple(named)


def _choose(dim: Dim, names: set[str], weak: set[str]) -> str:
    own = None if _PLACEHOLDER.fullmatch(dim.name) or dim.name == "sample" else dim.name
    if dim.extra and own:
        return own
    found = next((n for n in PRIORITY if n in names), own or min(names, default=None))
    return found or min(weak - {"sample"}, default=UNNAMED)


def _link(ops: tuple[Op, ...], tensors: tuple[Tensor, ...]) -> Classes:
    """Join the dims that are read from one another, through steps, values and tensors; parameters join nothing."""
    classes = Classes()
    for o, op in enumerate(ops):
        for s, step in enumerate(op.steps):
            for value, write in zip(step.outputs, step.writes):
                for axis, dims in enumerate(write):
                    for place, d in enumerate(dims):
                        classes.join(("dim", o, s, d), ("value", o, value, axis, place))
            for value, read in zip(step.inputs, step.reads):
                for axis, factors in enumerate(read):
                    if tuple(f.size for f in factors) == op.values[value].factoring[axis]:
                        for place, f in enumerate(factors):
                            if f.dim >= 0:
                                classes.join(("dim", o, s, f.dim), ("value", o, value, axis, place))
        for operand in (*op.inputs, *op.outputs):
            if tensors[operand.tensor].source in ("parameter", "buffer"):
                continue
            for axis, sizes in enumerate(op.values[operand.value].factoring):
                for place, size in enumerate(sizes):  # a factor is known by where it is, however others factor the rest
                    there = ("tensor", operand.tensor, axis, prod(sizes[:place]), size)
                    classes.join(("value", o, operand.value, axis, place), there)
    return classes
