"""Tensors that are indexed by tensors."""

from __future__ import annotations

import math
from typing import Any

from . import steps
from .trace import Inputs, Recorder, Shape


def index(to: Recorder, inputs: Inputs, args: dict[str, Any], outputs: list[Shape]) -> list[int] | None:
    """Integer indices on neighbouring axes pick from those axes. An index that counts all elements of its axis, such as
    `torch.arange` along the batch, moves none of them."""
    axes = sorted(int(slot.partition(".")[2]) for slot in inputs if slot.startswith("indices."))
    indices = [inputs[f"indices.{axis}"] for axis in axes]
    if axes != list(range(axes[0], axes[0] + len(axes))) or any("int" not in to.dtype(i) for i in indices):
        return None
    value, first = inputs["self"], axes[0]
    rank = max(len(to.shape(i)) for i in indices)
    counted = [_counted(to, i, to.shape(value)[axis], rank) for axis, i in zip(axes, indices)]
    if -1 not in counted and counted == sorted({*counted}):
        return [steps.view(to, value, outputs[0])]
    if len(axes) > 1 and counted[:-1] == [*range(len(axes) - 1)]:
        return [_picked(to, value, indices[-1], first, axes[-1], outputs[0])]
    slots = {f"indices.{i}": index for i, index in enumerate(indices)}
    return to.emit("index", {"self": value, **slots}, {"axis": first}, outputs[0])


def _counted(to: Recorder, index: int, size: int, rank: int) -> int:
    """The axis, of those that the indices have together, along which this one counts all there are; -1 if none."""
    shape = to.shape(index)
    long = [axis for axis, n in enumerate(shape, rank - len(shape)) if n != 1]
    return long[0] if len(long) == 1 and to.counts(index, size) else -1


def _picked(to: Recorder, value: int, index: int, first: int, axis: int, shape: Shape) -> int:
    """The index picks from an axis, for each element of the axes between `first` and that one."""
    own = to.shape(value)
    each, after = own[first:axis], own[axis + 1 :]
    count = math.prod(shape[axis : len(shape) - len(after)])
    index = steps.expand(to, index, shape[first : len(shape) - len(after)])
    index = _from_start(to, steps.cast(to, index, "torch.int64"), own[axis])
    index = steps.view(to, index, (*[1] * first, *each, count, *[1] * len(after)))
    index = steps.expand(to, index, (*own[:axis], count, *after))
    options = {"dim": axis, "sparse_grad": False}
    (found,) = to.emit("gather", {"self": value, "index": index}, options, to.shape(index))
    return steps.view(to, found, shape)


def _from_start(to: Recorder, index: int, size: int) -> int:
    """Negative indices count from the end, which `gather` does not accept."""
    shape, own = to.shape(index), {"self": index}
    (below,) = to.emit("lt", own, {"other": 0}, shape, overload="Scalar", pointwise=True, dtypes=["bool"])
    (added,) = to.emit("add", own, {"other": size, "alpha": 1}, shape, overload="Scalar", pointwise=True)
    both = {"condition": below, "self": added, "other": index}
    return to.emit("where", both, {}, shape, overload="self", pointwise=True, dtypes=["int64"])[0]


def index_select(to: Recorder, inputs: Inputs, args: dict[str, Any], outputs: list[Shape]) -> list[int] | None:
    axis = int(args["dim"]) % max(len(to.shape(inputs["self"])), 1)
    if not to.shape(inputs["self"]) or not to.shape(inputs["index"]):
        return None
    slots = {"self": inputs["self"], "indices.0": inputs["index"]}
    return to.emit("index", slots, {"axis": axis}, outputs[0])
