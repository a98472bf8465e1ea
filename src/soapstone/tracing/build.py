"""From fused calls to the operator graph: dims, what may be split, kinds and names."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace
from typing import Any

from .. import _core
from ..graph import Dim, Factor, Op, Operand, OperatorGraph, Settings, Step, Tensor, Value
from ..rules import UNRULED
from .fusion import Group, fuse
from .refine import Draft, draft, refine
from .trace import Trace, TraceCall

PRIORITY = ("sample", "height", "width", "head", "length", "hidden", "channel")
_PLACEHOLDER = re.compile(r"(b|s|o)\.\d+|[xrio]\d+|v\d+_\d+|new\d*")


def build(trace: Trace, settings: Settings) -> OperatorGraph:
    """The operator graph of a trace."""
    groups = fuse(trace)
    drafts = [_Draft(trace, group) for group in groups]
    used = {v for d in drafts for v in d.external} | {trace.loss} | {v for d in drafts for v in d.exits(drafts)}
    kept = sorted(used | set(trace.inputs))
    tensor_of = {value: i for i, value in enumerate(kept)}
    tensors = tuple(Tensor(**vars(trace.values[value])) for value in kept)
    names = _op_names(trace, groups)
    ops = tuple(d.op(name, tensor_of, used) for d, name in zip(drafts, names))
    ops = _with_layers(_with_dim_names(ops, tensors, settings), tensors)
    unruled = {c.call.kind for c in trace.calls if c.rule is UNRULED}
    return OperatorGraph(
        tensors,
        ops,
        tuple(tensor_of[v] for v in trace.inputs),
        tensor_of[trace.loss],
        settings,
        dict(trace.aliases),
        tuple(trace.counters),
        tuple(sorted(unruled)),
    )


class _Draft:
    """One op in the making: its steps over values numbered within the op."""

    def __init__(self, trace: Trace, group: Group) -> None:
        self.trace, self.group = trace, group
        calls = [trace.calls[i] for i in group.calls]
        made = {v for call in calls for v in call.outputs}
        self.external = list(dict.fromkeys(v for call in calls for v in call.inputs if v not in made))
        numbered = self.external + [v for call in calls for v in call.outputs]
        self.local = {v: i for i, v in enumerate(numbered)}
        self.steps = [draft(c, [self.local[v] for v in c.inputs], [self.local[v] for v in c.outputs]) for c in calls]
        refine(self.steps)
        self.head = group.calls.index(group.head)
        self.exit = group.calls.index(group.exit)
        self.values = [self._value(i, v) for i, v in enumerate(numbered)]

    def exits(self, drafts: list[_Draft]) -> list[int]:
        """The exit's outputs that other ops read."""
        read = {v for d in drafts if d is not self for v in d.external}
        return [v for v in self.trace.calls[self.group.exit].outputs if v in read]

    def _value(self, index: int, value: int) -> Value:
        described = self.trace.values[value]
        factoring: list[list[int]] | None = None
        for step in self.steps:
            if index in step.outputs:
                factoring = step.write_sizes(step.outputs.index(index))
            for number, read in enumerate(step.inputs):
                if read == index and index < len(self.external):
                    sizes = step.read_sizes(number)
                    factoring = sizes if factoring is None else _meet(factoring, sizes, described.shape)
        assert factoring is not None
        return Value(described.shape, described.dtype, tuple(tuple(axis) for axis in factoring))

    def op(self, name: str, tensor_of: dict[int, int], used: set[int]) -> Op:
        drivers = _drivers(self)
        dims = _dims(self, drivers)
        head = self.trace.calls[self.group.head]
        exits = self.trace.calls[self.group.exit].outputs
        grad = any(self.trace.values[v].grad for v in self.external)
        steps = tuple(_step(d) for d in self.steps)
        return Op(
            name=name,
            kind=_label(head),
            layer="",
            dims=dims,
            values=tuple(self.values),
            steps=steps,
            inputs=tuple(Operand(tensor_of[v], self.local[v]) for v in self.external),
            outputs=tuple(Operand(tensor_of[v], self.local[v]) for v in exits if v in used),
            head=self.head,
            flops=sum(
                d.source.rule.flops(s.sizes([(0, dim.size) for dim in s.dims]))
                for d, s in zip(self.steps, steps)
                if not d.source.rule.shape
            ),
            parameters=tuple(self.trace.values[v].name for v in self.external if self._is_parameter(v)),
            backward=grad and any(self.trace.values[v].grad for v in exits),
            updates=tuple(Operand(tensor_of[v], slot) for v, slot in head.updates),
        )

    def _is_parameter(self, value: int) -> bool:
        return self.trace.values[value].source == "parameter"


def _meet(a: list[list[int]], b: list[list[int]], shape: tuple[int, ...]) -> list[list[int]]:
    """Two readers' factorings of one external value; an axis without a common refinement stays flat."""
    return [x if x == y else (_core.refine(x, y) or ([n] if n > 1 else [])) for x, y, n in zip(a, b, shape)]


def _step(d: Draft) -> Step:
    call = d.source.call
    reads = tuple(tuple(tuple(axis) for axis in read) for read in d.reads)
    writes = tuple(tuple(tuple(axis) for axis in write) for write in d.writes)
    return Step(call.kind, call.overload, call.slots, tuple(d.inputs), tuple(d.outputs), call.args, tuple(d.dims),
                reads, writes, d.combine)  # fmt: skip


Driver = tuple[int, int]  # (step, dim) of the op's own dims
Drivers = dict[tuple[int, int], Driver | None]  # (step, dim) -> what alone moves it; None: nothing, or several


def _disjoint(f: Factor) -> bool:
    """Whether disjoint intervals stay disjoint."""
    return f.dim >= 0 and f.lower[0] == f.upper[0] > 0 and f.lower[2] == f.upper[2] == 1 and f.upper[1] <= f.lower[1]


def _drivers(op: _Draft) -> tuple[Drivers, dict[tuple[int, int], Driver | None]]:
    """Follow the exit's dims back through the steps: which of them moves each step's dims and each value's dims."""
    steps: Drivers = {}
    values: dict[tuple[int, int], Driver | None] = {}
    for s in reversed(range(len(op.steps))):
        step = op.steps[s]
        asked: dict[int, set[Driver | None]] = {}
        for number, value in enumerate(step.outputs):
            for place, d in enumerate(d for axis in step.writes[number] for d in axis):
                if (value, place) in values:
                    asked.setdefault(d, set()).add(values[value, place])
        for d in range(len(step.dims)):
            found = asked.get(d, set())
            steps[s, d] = found.pop() if len(found) == 1 else None
            if s == op.exit and any(d in axis for write in step.writes for axis in write):
                steps[s, d] = (s, d)
            if s == op.head and d in step.extras:
                steps[s, d] = (s, d)
        for number, value in enumerate(step.inputs):
            _pass_back(op, step, s, number, value, steps, values)
    return steps, values


def _pass_back(
    op: _Draft, step: Draft, s: int, number: int, value: int, steps: Drivers,
    values: dict[tuple[int, int], Driver | None],
) -> None:  # fmt: skip
    place = 0
    for axis, sizes in zip(step.reads[number], op.values[value].factoring):
        same = tuple(f.size for f in axis) == sizes
        for k in range(len(sizes)):
            driver = steps[s, axis[k].dim] if same and _disjoint(axis[k]) else None
            known = values.get((value, place), driver)
            values[value, place] = driver if known == driver else None
            place += 1


def _dims(op: _Draft, found: tuple[Drivers, dict[tuple[int, int], Driver | None]]) -> tuple[Dim, ...]:
    steps, values = found
    last = op.steps[op.exit]
    own = [(op.exit, d) for d in dict.fromkeys(d for write in last.writes for axis in write for d in axis)]
    own += [(op.head, d) for d in op.steps[op.head].extras]
    parameters = {
        values.get((op.local[v], place))
        for v in op.external
        if op._is_parameter(v)
        for place in range(sum(map(len, op.values[op.local[v]].factoring)))
    }
    over = op.steps[op.head].combine.over if op.steps[op.head].combine else ()
    combined = {steps[op.head, d] for d in over}
    result = []
    for s, d in own:
        dim = op.steps[s].dims[d]
        extra = s == op.head and d in op.steps[s].extras
        kind = "reduction" if extra else "parameter" if (s, d) in parameters else "attribute"
        splittable = dim.size > 1 and not dim.whole and (extra or _splittable(op, steps, (s, d)))
        result.append(Dim(dim.name, dim.size, kind, splittable, (s, d) in combined, extra, s, d))
    return tuple(result)


def _splittable(op: _Draft, steps: Drivers, driver: Driver) -> bool:
    for s, step in enumerate(op.steps):
        driven = [d for d in range(len(step.dims)) if steps[s, d] == driver]
        if any(step.dims[d].whole for d in driven):
            return False
        if not driven and not step.source.rule.shape:
            return False
    return True


def _op_names(trace: Trace, groups: list[Group]) -> list[str]:
    names = []
    for group in groups:
        head = trace.calls[group.head]
        names.append(head.module or _label(head))
    taken: Counter[str] = Counter()
    for i, name in enumerate(names):
        while names[i] in taken:
            taken[name] += 1
            names[i] = f"{name}_{taken[name]}"
        taken[names[i]] += 1
    return names


def _label(call: TraceCall) -> str:
    return call.rule.name or call.call.kind.strip("_")


class _Classes:
    """Union-find over hashable things."""

    def __init__(self) -> None:
        self.parent: dict[Any, Any] = {}

    def find(self, item: Any) -> Any:
        self.parent.setdefault(item, item)
        while self.parent[item] != item:
            self.parent[item] = self.parent[self.parent[item]]
            item = self.parent[item]
        return item

    def join(self, a: Any, b: Any) -> None:
        self.parent[self.find(a)] = self.find(b)


def _link(ops: tuple[Op, ...], tensors: tuple[Tensor, ...]) -> _Classes:
    """Join the dims that are read one to one, through steps, values and tensors; parameters join nothing."""
    classes = _Classes()
    for o, op in enumerate(ops):
        for s, step in enumerate(op.steps):
            for value, write in zip(step.outputs, step.writes):
                for axis, dims in enumerate(write):
                    for place, d in enumerate(dims):
                        classes.join(("dim", o, s, d), ("value", o, value, axis, place))
            for value, read in zip(step.inputs, step.reads):
                for axis, factors in enumerate(read):
                    if tuple(f.size for f in factors) != op.values[value].factoring[axis]:
                        continue
                    for place, f in enumerate(factors):
                        if f.identity:
                            classes.join(("dim", o, s, f.dim), ("value", o, value, axis, place))
        for operand in (*op.inputs, *op.outputs):
            if tensors[operand.tensor].source not in ("parameter", "buffer"):
                for axis, sizes in enumerate(op.values[operand.value].factoring):
                    for place in range(len(sizes)):
                        classes.join(
                            ("value", o, operand.value, axis, place), ("tensor", operand.tensor, axis, sizes, place)
                        )
    return classes


def _with_dim_names(ops: tuple[Op, ...], tensors: tuple[Tensor, ...], settings: Settings) -> tuple[Op, ...]:
    classes = _link(ops, tensors)
    batch = {
        classes.find(("tensor", i, settings.batch_dim, (t.shape[settings.batch_dim],), 0))
        for i, t in enumerate(tensors)
        if t.source == "input" and len(t.shape) > settings.batch_dim
    }
    given: dict[Any, set[str]] = {root: {"sample"} for root in batch}
    for o, op in enumerate(ops):
        for s, step in enumerate(op.steps):
            for d, dim in enumerate(step.dims):
                if not _PLACEHOLDER.fullmatch(dim.name):
                    given.setdefault(classes.find(("dim", o, s, d)), set()).add(dim.name)
    named = []
    for o, op in enumerate(ops):
        dims: list[Dim] = []
        for dim in op.dims:
            root = classes.find(("dim", o, dim.step, dim.step_dim))
            name = _choose(dim, given.get(root, set()))
            kind = "sample" if root in batch else dim.kind
            taken = Counter(re.sub(r"_\d+$", "", d.name) for d in dims)[name]
            dims.append(replace(dim, name=name if not taken else f"{name}_{taken + 1}", kind=kind))
        named.append(replace(op, dims=tuple(dims)))
    return tuple(named)


def _choose(dim: Dim, names: set[str]) -> str:
    own = None if _PLACEHOLDER.fullmatch(dim.name) else dim.name
    if dim.extra and own:
        return own
    return next((n for n in PRIORITY if n in names), own or min(names, default="length"))


def _with_layers(ops: tuple[Op, ...], tensors: tuple[Tensor, ...]) -> tuple[Op, ...]:
    """Ops that share a parameter are one layer, named after its first op."""
    classes = _Classes()
    for op in ops:
        for parameter in op.parameters:
            classes.join(("op", op.name), ("parameter", parameter))
    first: dict[Any, str] = {}
    for op in ops:
        first.setdefault(classes.find(("op", op.name)), op.name)
    return tuple(replace(op, layer=first[classes.find(("op", op.name))]) for op in ops)
