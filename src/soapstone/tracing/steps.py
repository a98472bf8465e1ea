"""The calls that rewrites are made of."""

from __future__ import annotations

from .trace import Recorder, Shape


def slice(to: Recorder, value: int, axis: int, start: int, end: int) -> int:
    shape = to.shape(value)
    if (start, end) == (0, shape[axis]):
        return value
    out = (*shape[:axis], end - start, *shape[axis + 1 :])
    args = {"dim": axis, "start": start, "end": end, "step": 1}
    return to.emit("slice", {"self": value}, args, out, overload="Tensor")[0]


def select(to: Recorder, value: int, axis: int, index: int) -> int:
    shape = to.shape(value)
    out = (*shape[:axis], *shape[axis + 1 :])
    return to.emit("select", {"self": value}, {"dim": axis, "index": index}, out, overload="int")[0]


def stack(to: Recorder, values: list[int], axis: int) -> int:
    shape = to.shape(values[0])
    out = (*shape[:axis], len(values), *shape[axis:])
    return to.emit("stack", {f"tensors.{i}": v for i, v in enumerate(values)}, {"dim": axis}, out)[0]


def cat(to: Recorder, values: list[int], axis: int) -> int:
    if len(values) == 1:
        return values[0]
    shape = list(to.shape(values[0]))
    shape[axis] = sum(to.shape(v)[axis] for v in values)
    return to.emit("cat", {f"tensors.{i}": v for i, v in enumerate(values)}, {"dim": axis}, tuple(shape))[0]


def view(to: Recorder, value: int, shape: Shape) -> int:
    if to.shape(value) == shape:
        return value
    return to.emit("view", {"self": value}, {"size": list(shape)}, shape)[0]


def permute(to: Recorder, value: int, order: list[int]) -> int:
    shape = to.shape(value)
    return to.emit("permute", {"self": value}, {"dims": order}, tuple(shape[i] for i in order))[0]


def expand(to: Recorder, value: int, shape: Shape) -> int:
    if to.shape(value) == shape:
        return value
    return to.emit("expand", {"self": value}, {"size": list(shape), "implicit": False}, shape)[0]


def cast(to: Recorder, value: int, dtype: str) -> int:
    if dtype == f"torch.{to.dtype(value)}":
        return value
    dtypes = [dtype.removeprefix("torch.")]
    return to.emit("_to_copy", {"self": value}, {"dtype": dtype}, to.shape(value), pointwise=True, dtypes=dtypes)[0]
