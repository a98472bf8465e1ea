"""From fused calls to the operator graph."""

from __future__ import annotations

from .. import _core
from ..graph import ITEM_SIZES, Op, Operand, OperatorGraph, Settings, Step, Value, extents_by_name
from ..rules import UNRULED
from .checkpoints import with_recomputed
from .dims import dims_of
from .fusion import Group, fuse
from .names import label, name_dims, name_layers, unique
from .refine import Draft, draft, refine
from .samples import Place, Samples
from .trace import Trace


def build(trace: Trace, settings: Settings) -> OperatorGraph:
    """The operator graph of a trace."""
    given = {v: Place(axis, 1, trace.values[v].shape[axis])
             for v, axis in zip(trace.inputs, settings.batch_dims) if axis is not None}  # fmt: skip
    samples = Samples(given)
    drafts = [_OpDraft(trace, group, samples) for group in fuse(trace)]
    read = {value for d in drafts for value in d.external}
    kept = sorted(read | {trace.loss} | set(trace.inputs))
    tensor_of = {value: i for i, value in enumerate(kept)}
    tensors = tuple(trace.values[value].tensor() for value in kept)
    heads = [trace.calls[d.group.head] for d in drafts]
    names = unique([head.module or label(head) for head in heads])
    ops = tuple(d.op(name, tensor_of) for d, name in zip(drafts, names))
    ops = with_recomputed(ops, [head.checkpoint for head in heads], [tensor_of[trace.loss]])
    batch_dims = {tensor_of[v]: axis for v, axis in zip(trace.inputs, settings.batch_dims) if axis is not None}
    return OperatorGraph(
        tensors,
        name_layers(name_dims(ops, tensors, batch_dims)),
        tuple(tensor_of[v] for v in trace.inputs),
        tensor_of[trace.loss],
        settings,
        dict(trace.aliases),
        tuple(trace.counters),
        tuple(trace.draws),
        dict(trace.frozen),
    )


class _OpDraft:
    """One op in the making: its steps over values numbered within the op, the external ones first. What several
    steps read of one tensor is one value, but a mapped read is a value of its own: the two would not fit one box."""

    def __init__(self, trace: Trace, group: Group, samples: Samples) -> None:
        self.trace, self.group = trace, group
        calls = [trace.calls[i] for i in group.calls]
        made = [v for call in calls for v in call.outputs]
        self.steps = [draft(call) for call in calls]
        reads = [[(v, number if s.maps(n) and v not in made else -1) for n, v in enumerate(s.source.inputs)]
                 for number, s in enumerate(self.steps)]  # fmt: skip
        outside = list(dict.fromkeys(key for row in reads for key in row if key[0] not in made))
        self.external = [v for v, _ in outside]
        numbers = {key: i for i, key in enumerate([*outside, *((v, -1) for v in made)])}
        for step, row in zip(self.steps, reads):
            step.inputs = [numbers[key] for key in row]
            step.outputs = [numbers[v, -1] for v in step.source.outputs]
        for step in self.steps:
            for number, value in enumerate(step.source.inputs):
                samples.cut(step, number, value)
        refine(self.steps)
        samples.follow(self.steps)
        self.values = [self._value(i, v) for i, v in enumerate(self.external + made)]
        self.exits = {v: numbers[v, -1] for v in trace.calls[group.exit].outputs}

    def op(self, name: str, tensor_of: dict[int, int]) -> Op:
        head, described = self.trace.calls[self.group.head], self.trace.values
        place, last = self.group.calls.index(self.group.head), self.group.calls.index(self.group.exit)
        parameters = [i for i, v in enumerate(self.external) if described[v].source == "parameter"]
        return Op(
            name=name,
            kind=label(head),
            layer="",
            dims=dims_of(self.steps, self.values, place, last, parameters),
            values=tuple(self.values),
            steps=tuple(_step(d) for d in self.steps),
            inputs=tuple(Operand(tensor_of[v], i) for i, v in enumerate(self.external)),
            outputs=tuple(Operand(tensor_of[v], i) for v, i in self.exits.items() if v in tensor_of),
            head=place,
            flops=sum(_flops(d) for d in self.steps),
            parameters=tuple(dict.fromkeys(described[self.external[i]].name for i in parameters)),
            backward=any(described[v].grad for v in self.exits),
            updates=tuple(Operand(tensor_of[v], slot) for d in self.steps for v, slot in d.source.updates),
            saved=self._saved(),
            extra=sum(self._extra(d) for d in self.steps if self._trains(d)),
        )

    def _trains(self, d: Draft) -> bool:
        return any(self.trace.values[v].grad for v in d.source.outputs)

    def _saved(self) -> tuple[int, ...]:
        """The values that backward reads, parameters and constants apart."""
        kept: set[int] = set()
        for d in filter(self._trains, self.steps):
            grads = [self.trace.values[v].grad for v in d.source.inputs]
            inputs, outputs = d.source.rule.saved(d.source.call, grads)
            kept |= {d.inputs[i] for i in inputs} | {d.outputs[i] for i in outputs}
        held = ("parameter", "buffer", "constant")
        sources = [self.trace.values[v].source for v in self.external]
        return tuple(sorted(v for v in kept if v >= len(sources) or sources[v] not in held))

    def _extra(self, d: Draft) -> int:
        return d.source.rule.extra(d.source.call, ITEM_SIZES[self.trace.values[d.source.outputs[0]].dtype])

    def _value(self, index: int, value: int) -> Value:
        described = self.trace.values[value]
        factoring: list[list[int]] | None = None
        for step in self.steps:
            if index in step.outputs:
                factoring = step.write_sizes(step.outputs.index(index))
            elif index < len(self.external):
                for number in (n for n, read in enumerate(step.inputs) if read == index):
                    sizes = step.read_sizes(number)
                    factoring = sizes if factoring is None else _meet(factoring, sizes, described.shape)
        assert factoring is not None
        return Value(described.shape, described.dtype, tuple(tuple(axis) for axis in factoring))


def _meet(a: list[list[int]], b: list[list[int]], shape: tuple[int, ...]) -> list[list[int]]:
    """Two readers' factorings of one external value; an axis without a common refinement stays flat."""
    return [x if x == y else (_core.refine(x, y) or ([n] if n > 1 else [])) for x, y, n in zip(a, b, shape)]


def _step(d: Draft) -> Step:
    call = d.source.call
    return Step(
        kind=call.kind,
        overload=call.overload,
        slots=call.slots,
        inputs=tuple(d.inputs),
        outputs=tuple(d.outputs),
        args=call.args,
        dims=tuple(d.dims),
        reads=tuple(tuple(tuple(axis) for axis in read) for read in d.reads),
        writes=tuple(tuple(tuple(axis) for axis in write) for write in d.writes),
        combine=d.combine,
        ruled=d.source.rule is not UNRULED,
        shape=d.source.rule.shape,
        flops=_flops(d),
    )


def _flops(d: Draft) -> int:
    sizes = extents_by_name(d.dims, [(0, dim.size) for dim in d.dims])
    return 0 if d.source.rule.shape else d.source.rule.flops(d.source.call, sizes)
