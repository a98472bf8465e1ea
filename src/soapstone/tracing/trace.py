"""One model as a list of calls, and the recorder that writes it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch

from ..errors import CaptureError
from ..graph import ITEM_SIZES, Draw, Tensor
from ..rules import Call, Rule, facts_of, rule_for
from .constants import Elements

Shape = tuple[int, ...]
Inputs = dict[str, int]


@dataclass
class TraceValue:
    name: str
    shape: Shape
    dtype: str
    source: str = "op"
    grad: bool = False
    fill: float | None = None
    data: Elements | None = None

    def tensor(self) -> Tensor:
        """Of the graph."""
        data = None if self.data is None else self.data.encoded()
        return Tensor(self.name, self.shape, self.dtype, self.source, self.grad, self.fill, data)


@dataclass
class TraceCall:
    call: Call
    rule: Rule
    inputs: list[int]
    outputs: list[int]
    module: str
    updates: list[tuple[int, int]] = field(default_factory=list)  # (buffer, the call's output)
    checkpoint: int | None = None  # that it is in


class Chosen(NamedTuple):
    """Rows that data pick, of a shape as if all were: the line of code, and the axis, where there is one."""

    line: str
    axis: int | None


@dataclass
class Trace:
    values: list[TraceValue] = field(default_factory=list)
    calls: list[TraceCall] = field(default_factory=list)
    inputs: list[int] = field(default_factory=list)
    loss: int = -1
    aliases: dict[str, str] = field(default_factory=dict)
    counters: list[str] = field(default_factory=list)
    draws: list[Draw] = field(default_factory=list)
    chosen: dict[int, Chosen] = field(default_factory=dict)
    frozen: dict[str, Any] = field(default_factory=dict)  # Python values that forward read


class Recorder:
    """Adds values and calls to a trace, under the name and module of the node that is being read."""

    def __init__(self, chunk: int) -> None:
        self.trace = Trace()
        self.chunk = chunk  # how many time steps of a recurrent layer make one op
        self.grad = True  # whether the calls that come have gradients
        self.name = self.module = ""
        self.checkpoint: int | None = None
        self.maker: dict[int, TraceCall] = {}
        self.given: set[int] = set()  # values that no op computes: parameters, inputs, and views of them

    def value(self, value: TraceValue) -> int:
        if value.dtype not in ITEM_SIZES:
            raise CaptureError(f"{value.name} is of type {value.dtype}, which has no rule; compute with real numbers")
        self.trace.values.append(value)
        if value.source != "op":
            self.given.add(len(self.trace.values) - 1)
        return len(self.trace.values) - 1

    def shape(self, value: int) -> Shape:
        return self.trace.values[value].shape

    def dtype(self, value: int) -> str:
        return self.trace.values[value].dtype

    def constant(self, value: int) -> torch.Tensor | None:
        """The elements of a constant; None for what is none."""
        found = self.trace.values[value]
        if found.fill is not None:
            return torch.full((), found.fill, dtype=getattr(torch, found.dtype)).expand(found.shape)
        return None if found.data is None else found.data.tensor

    def counts(self, value: int, size: int, step: int = 1) -> bool:
        """Whether this is a constant of so many elements: 0, the step, twice the step, ..."""
        found = self.constant(value)
        return found is not None and found.reshape(-1).tolist() == [*range(0, size * step, step)]

    def emit(
        self,
        kind: str,
        inputs: dict[str, int],
        args: dict[str, Any],
        *outputs: Shape,
        overload: str = "default",
        pointwise: bool = False,
        dtypes: list[str] | None = None,
    ) -> list[int]:
        """Add a call and return its outputs; their dtype is the first input's unless `dtypes` says otherwise."""
        values, facts = self.trace.values, facts_of(kind)
        if facts.draws:  # numbered, so that masks can be drawn in eager order
            order = tuple(args.get("order", range(len(outputs[0]))))
            args = {**args, "draw": len(self.trace.draws)}
            self.trace.draws.append(Draw(outputs[0], float(args["p"]), order))
        numbers = list(inputs.values())
        call = Call(kind, overload, tuple(inputs), tuple(values[i].shape for i in numbers), tuple(outputs), args)
        grad = self.grad and not facts.detaches and any(values[i].grad for i in numbers)
        names = [self.name] if len(outputs) == 1 else [f"{self.name}.{i}" for i in range(len(outputs))]
        found = []
        for name, shape, dtype in zip(names, outputs, dtypes or [values[numbers[0]].dtype] * len(outputs)):
            found.append(self.value(TraceValue(name, shape, dtype, grad=grad and "float" in dtype)))
        rule = rule_for(call, pointwise=pointwise)
        if rule.shape and self.given.issuperset(numbers):
            self.given.update(found)
        made = TraceCall(call, rule, numbers, found, self.module, checkpoint=self.checkpoint)
        self.trace.calls.append(made)
        self.maker.update(dict.fromkeys(found, made))
        return found

    def drop_dead(self) -> None:
        """Keep the calls that the loss needs, and gradients where the loss depends on a value through gradients."""
        trace = self.trace
        needed, trained, kept = {trace.loss}, {trace.loss}, []
        for call in reversed(trace.calls):
            if needed & set(call.outputs):
                needed |= set(call.inputs)
                kept.append(call)
            elif call.updates:
                where = call.module or "the model"
                raise CaptureError(f"what {call.call.kind.strip('_')} in {where} makes is not used; leave it out")
            if any(v in trained and trace.values[v].grad for v in call.outputs):
                trained |= set(call.inputs)
        for value in (trace.values[i] for i in needed if 0 in trace.values[i].shape):
            raise CaptureError(f"{value.name} of shape {list(value.shape)} has no elements; capture with at least one")
        trace.calls = kept[::-1]
        for i, value in enumerate(trace.values):
            value.grad = value.grad and i in trained


def meaning(trace: Trace) -> object:
    """Of the loss: equal for traces that compute it alike, whatever their values are called."""
    known: dict[int, object] = {}
    for number, value in enumerate(trace.values):
        if value.source != "op":
            name = "" if value.source == "constant" else value.name
            known[number] = hash((value.source, name, value.shape, value.dtype, value.fill, value.data))
    for call in trace.calls:
        args = repr(sorted((name, given) for name, given in call.call.args.items() if name not in ("draw", "order")))
        made = hash((call.call.kind, call.call.overload, args, tuple(known[value] for value in call.inputs)))
        known.update({value: hash((made, place)) for place, value in enumerate(call.outputs)})
    return known[trace.loss]
