"""Calls that compute each row by itself, and the same calls on other rows: what sorting and choosing rows have in
common."""

from __future__ import annotations

from collections.abc import Callable

from ..errors import GraphError
from ..rules import POINTWISE
from .trace import Recorder, Shape, TraceCall


def row_axes(call: TraceCall, axes: dict[int, int]) -> list[int] | None:
    """Given the axis of the rows in some of what a call reads, their axis in each value that it makes; None where a row
    of one does not come from the same row of the other alone. By its rule."""
    try:
        bound, _ = call.rule.bind(call.call)
    except GraphError:
        return None
    rows: set[int] = set()
    others: set[int] = set()
    for value, read in zip(call.inputs, bound.reads):
        for axis, factors in enumerate(read):
            dims = {factor.dim for factor in factors}
            if axis != axes.get(value):
                others |= dims
            elif (rows and rows != dims) or not all(factor.identity for factor in factors):
                return None
            else:
                rows = dims
    found = [[axis for axis, dims in enumerate(write) if rows & set(dims)] for write in bound.writes]
    whole = all(len(at) == 1 and set(write[at[0]]) == rows for at, write in zip(found, bound.writes))
    apart = not rows & others and not any(bound.dims[dim].whole for dim in rows)
    return [at[0] for at in found] if rows and whole and apart else None


def read_anew(to: Recorder, renamed: dict[int, int], read: Callable[[TraceCall], None]) -> None:
    """Go over all calls of a trace. What `read` emits stands behind its call, under the call's name and module; what it
    puts into `renamed` takes the place of a value for all that come later."""
    calls, to.trace.calls = to.trace.calls, []
    for call in calls:
        call.inputs = [renamed.get(value, value) for value in call.inputs]
        to.trace.calls.append(call)
        to.name, to.module, to.checkpoint = to.trace.values[call.outputs[0]].name, call.module, call.checkpoint
        read(call)
    to.trace.loss = renamed.get(to.trace.loss, to.trace.loss)


def again(to: Recorder, call: TraceCall, inputs: list[int], outputs: list[Shape]) -> list[int]:
    """The same call of other values."""
    return to.emit(
        call.call.kind, dict(zip(call.call.slots, inputs)), call.call.args, *outputs, overload=call.call.overload,
        pointwise=call.rule is POINTWISE, dtypes=[to.dtype(value) for value in call.outputs],
    )  # fmt: skip
