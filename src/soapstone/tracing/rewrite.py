"""Calls that are better seen as other calls: several outputs as slices, recurrent layers as cells, attention with
dropout as its products, a class loss as a score for each sample and their mean.

A rewrite gets the call's inputs by slot, its other arguments and the shapes of its outputs, emits other calls, and
returns the values that stand for the outputs; None leaves the call as it is.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..errors import CaptureError
from .trace import Recorder, Shape

Inputs = dict[str, int]
Rewrite = Callable[[Recorder, Inputs, dict[str, Any], list[Shape]], list[int] | None]


def listed(inputs: Inputs, name: str) -> list[int]:
    """The values of a list argument."""
    found = [(int(slot.partition(".")[2]), value) for slot, value in inputs.items() if slot.startswith(f"{name}.")]
    return [value for _, value in sorted(found)]


def _slice(to: Recorder, value: int, axis: int, start: int, end: int) -> int:
    shape = to.shape(value)
    if (start, end) == (0, shape[axis]):
        return value
    out = (*shape[:axis], end - start, *shape[axis + 1 :])
    args = {"dim": axis, "start": start, "end": end, "step": 1}
    return to.emit("slice", {"self": value}, args, out, overload="Tensor")[0]


def _select(to: Recorder, value: int, axis: int, index: int) -> int:
    shape = to.shape(value)
    out = (*shape[:axis], *shape[axis + 1 :])
    return to.emit("select", {"self": value}, {"dim": axis, "index": index}, out, overload="int")[0]


def _stack(to: Recorder, values: list[int], axis: int) -> int:
    shape = to.shape(values[0])
    out = (*shape[:axis], len(values), *shape[axis:])
    return to.emit("stack", {f"tensors.{i}": v for i, v in enumerate(values)}, {"dim": axis}, out)[0]


def _cat(to: Recorder, values: list[int], axis: int) -> int:
    if len(values) == 1:
        return values[0]
    shape = list(to.shape(values[0]))
    shape[axis] = sum(to.shape(v)[axis] for v in values)
    return to.emit("cat", {f"tensors.{i}": v for i, v in enumerate(values)}, {"dim": axis}, tuple(shape))[0]


def _view(to: Recorder, value: int, shape: Shape) -> int:
    return to.emit("view", {"self": value}, {"size": list(shape)}, shape)[0]


def _permute(to: Recorder, value: int, order: list[int]) -> int:
    shape = to.shape(value)
    return to.emit("permute", {"self": value}, {"dims": order}, tuple(shape[i] for i in order))[0]


# Several outputs


def split(to: Recorder, inputs: Inputs, args: dict[str, Any], outputs: list[Shape]) -> list[int]:
    """Equal pieces are a view and selections, so that what makes them splits inside each piece; others are slices."""
    value = inputs["self"]
    shape = to.shape(value)
    axis = int(args.get("dim", 0)) % len(shape)
    sizes = [out[axis] for out in outputs]
    if len(set(sizes)) == 1 and len(sizes) > 1:
        viewed = _view(to, value, (*shape[:axis], len(sizes), sizes[0], *shape[axis + 1 :]))
        return [_select(to, viewed, axis, i) for i in range(len(sizes))]
    ends = [sum(sizes[: i + 1]) for i in range(len(sizes))]
    return [_slice(to, value, axis, end - size, end) for size, end in zip(sizes, ends)]


def unbind(to: Recorder, inputs: Inputs, args: dict[str, Any], outputs: list[Shape]) -> list[int]:
    value = inputs["self"]
    axis = int(args.get("dim", 0)) % len(to.shape(value))
    return [_select(to, value, axis, i) for i in range(len(outputs))]


def broadcast_tensors(to: Recorder, inputs: Inputs, args: dict[str, Any], outputs: list[Shape]) -> list[int]:
    def expanded(value: int, out: Shape) -> int:
        if to.shape(value) == out:
            return value
        return to.emit("expand", {"self": value}, {"size": list(out), "implicit": False}, out)[0]

    return [expanded(value, out) for value, out in zip(listed(inputs, "tensors"), outputs)]


# Shapes


def copy(to: Recorder, inputs: Inputs, args: dict[str, Any], outputs: list[Shape]) -> list[int] | None:
    """What is left of an assignment: the source, in the target's shape."""
    source = inputs["src"]
    if to.dtype(source) != to.dtype(inputs["self"]):
        return None
    if to.shape(source) == outputs[0]:
        return [source]
    return to.emit("expand", {"self": source}, {"size": list(outputs[0]), "implicit": False}, outputs[0])


def roll(to: Recorder, inputs: Inputs, args: dict[str, Any], outputs: list[Shape]) -> list[int] | None:
    """A roll is the end, then the beginning."""
    value, axes = inputs["self"], args["dims"]
    if not axes:
        return None
    for shift, given in zip(args["shifts"], axes):
        size = to.shape(value)[given]
        at = (-shift) % size if size else 0
        if at:
            axis = given % len(to.shape(value))
            value = _cat(to, [_slice(to, value, axis, at, size), _slice(to, value, axis, 0, at)], axis)
    return [value]


def index(to: Recorder, inputs: Inputs, args: dict[str, Any], outputs: list[Shape]) -> list[int] | None:
    """One integer index on one axis picks from that axis."""
    slots = [slot for slot in inputs if slot.startswith("indices.")]
    if len(slots) != 1 or "int" not in to.dtype(inputs[slots[0]]) or "axis" in args:
        return None
    axis = int(slots[0].partition(".")[2])
    return to.emit("index", {"self": inputs["self"], "indices.0": inputs[slots[0]]}, {"axis": axis}, outputs[0])


def pad(to: Recorder, inputs: Inputs, args: dict[str, Any], outputs: list[Shape]) -> list[int] | None:
    if args["mode"] != "constant":
        return None
    options = {"pad": args["pad"], "value": args["value"] or 0.0}
    return to.emit("constant_pad_nd", inputs, options, outputs[0])


def embedding_bag(to: Recorder, inputs: Inputs, args: dict[str, Any], outputs: list[Shape]) -> list[int] | None:
    """Bags of equal size are rows of look-ups that are added up or averaged."""
    bags, count = outputs[0][0], to.shape(inputs["indices"])[0]
    if args.get("mode") not in (0, 1) or "per_sample_weights" in inputs or count % bags:
        return None
    rows = _view(to, inputs["indices"], (bags, count // bags))
    width = to.shape(inputs["weight"])[1]
    options = {"padding_idx": -1, "scale_grad_by_freq": False, "sparse": False}
    found = to.emit("embedding", {"weight": inputs["weight"], "indices": rows}, options, (bags, count // bags, width))
    kind = ("sum", "dim_IntList") if args["mode"] == 0 else ("mean", "dim")
    reduce = {"dim": [1], "keepdim": False, "dtype": None}
    return to.emit(kind[0], {"self": found[0]}, reduce, (bags, width), overload=kind[1])


# Recurrent layers


@dataclass(frozen=True)
class _Layer:
    """One direction of one layer: its weights by slot, its first states."""

    weights: Inputs
    states: list[int]
    reverse: bool


def recurrent(cell: str) -> Rewrite:
    """Unroll a whole recurrent layer into cells, or into chunks of several steps."""

    def rewrite(to: Recorder, inputs: Inputs, args: dict[str, Any], outputs: list[Shape]) -> list[int] | None:
        states = listed(inputs, "hx") or [inputs["hx"]]
        params = listed(inputs, "params")
        count = (2 if args["has_biases"] else 0) + 2
        directions = 2 if args["bidirectional"] else 1
        if len(to.shape(inputs["input"])) != 3 or len(params) != count * directions * args["num_layers"]:
            return None  # without a batch, or projected
        x = _permute(to, inputs["input"], [1, 0, 2]) if args["batch_first"] else inputs["input"]
        lasts: list[list[int]] = []
        for layer in range(args["num_layers"]):
            runs = []
            for direction in range(directions):
                number = layer * directions + direction
                names = ("w_ih", "w_hh", "b_ih", "b_hh")[:count]
                weights = dict(zip(names, params[number * count : (number + 1) * count]))
                first = [_select(to, state, 0, number) for state in states]
                y, last = _run_layer(to, x, _Layer(weights, first, direction == 1), cell)
                runs.append(y)
                lasts.append(last)
            x = _cat(to, runs, 2)
            if args["dropout"] and args["train"] and layer + 1 < args["num_layers"]:
                x = to.emit("native_dropout", {"input": x}, {"p": args["dropout"], "train": True}, to.shape(x))[0]
        final = [_stack(to, [last[k] for last in lasts], 0) for k in range(len(states))]
        return [_permute(to, x, [1, 0, 2]) if args["batch_first"] else x, *final]

    return rewrite


def _run_layer(to: Recorder, x: int, layer: _Layer, cell: str) -> tuple[int, list[int]]:
    """The outputs, (time, sample, hidden), and the last states."""
    time, sample, _ = to.shape(x)
    hidden = to.shape(layer.weights["w_hh"])[1]
    states, outputs = layer.states, []
    chunk = to.chunk if cell in ("lstm", "gru") else 1
    starts = list(range(0, time, chunk))
    for start in reversed(starts) if layer.reverse else starts:
        end = min(start + chunk, time)
        given = {"hx": states[0]} if len(states) == 1 else {f"hx.{i}": s for i, s in enumerate(states)}
        shapes: list[Shape] = [(sample, hidden)] * len(states)
        if chunk == 1:
            step = _select(to, x, 0, start)
            states = to.emit(f"{cell}_cell", {"input": step, **given, **layer.weights}, {}, *shapes)
            outputs.append(_view(to, states[0], (1, sample, hidden)))
        else:
            steps = _slice(to, x, 0, start, end)
            options = {"reverse": layer.reverse}
            found = to.emit(
                f"{cell}_chunk",
                {"input": steps, **given, **layer.weights},
                options,
                (end - start, sample, hidden),
                *shapes,
            )
            outputs.append(found[0])
            states = found[1:]
    return _cat(to, outputs[::-1] if layer.reverse else outputs, 0), states


# Attention and losses


def attention(to: Recorder, inputs: Inputs, args: dict[str, Any], outputs: list[Shape]) -> list[int] | None:
    """With dropout, attention is its products, so that the mask falls on the weights as torch's own does."""
    p = args["dropout_p"]
    if not p:
        return None
    q, k, v = inputs["query"], inputs["key"], inputs["value"]
    if to.shape(q)[:-2] != to.shape(k)[:-2]:
        raise CaptureError("attention with dropout and grouped queries has no rule; repeat the keys and values")
    *outer, length, width = to.shape(q)
    keys = to.shape(k)[-2]
    scale = args["scale"] if args["scale"] is not None else 1 / math.sqrt(width)
    rank = len(to.shape(k))
    k = _permute(to, k, [*range(rank - 2), rank - 1, rank - 2])
    scores = to.emit("matmul", {"self": q, "other": k}, {}, (*outer, length, keys))[0]
    shape = to.shape(scores)
    scores = to.emit("mul", {"self": scores}, {"other": scale}, shape, overload="Scalar", pointwise=True)[0]
    if args["is_causal"]:
        scores = to.emit("causal_fill", {"self": scores}, {}, shape)[0]
    elif "attn_mask" in inputs:
        mask = inputs["attn_mask"]
        if to.dtype(mask) == "bool":
            hidden = to.emit("logical_not", {"self": mask}, {}, to.shape(mask), pointwise=True)[0]
            both, fill = {"self": scores, "mask": hidden}, {"value": -math.inf}
            scores = to.emit("masked_fill", both, fill, shape, overload="Scalar", pointwise=True)[0]
        else:
            both = {"self": scores, "other": mask}
            scores = to.emit("add", both, {"alpha": 1}, shape, overload="Tensor", pointwise=True)[0]
    weights = to.emit("softmax", {"self": scores}, {"dim": -1, "dtype": None}, shape, overload="int")[0]
    weights = to.emit("native_dropout", {"input": weights}, {"p": p, "train": True}, shape)[0]
    return to.emit("matmul", {"self": weights, "other": v}, {}, outputs[0])


def cross_entropy(to: Recorder, inputs: Inputs, args: dict[str, Any], outputs: list[Shape]) -> list[int] | None:
    """A loss for each sample, whose classes can be split, and their weighted mean."""
    shape, target = to.shape(inputs["self"]), inputs["target"]
    if len(shape) < 2 or "int" not in to.dtype(target):
        return None
    each = to.emit("class_loss", inputs, args, to.shape(target))[0]
    if args["reduction"] == 0:
        return [each]
    given = {"self": each, "target": target}
    given |= {"weight": inputs["weight"]} if "weight" in inputs else {}
    return to.emit("class_mean", given, args, ())


REWRITES: dict[str, Rewrite] = {
    **dict.fromkeys(("split", "split_with_sizes", "chunk", "tensor_split"), split),
    "unbind": unbind,
    "broadcast_tensors": broadcast_tensors,
    "copy": copy,
    "roll": roll,
    "index": index,
    "pad": pad,
    "embedding_bag": embedding_bag,
    "lstm": recurrent("lstm"),
    "gru": recurrent("gru"),
    "rnn_tanh": recurrent("rnn_tanh"),
    "rnn_relu": recurrent("rnn_relu"),
    "scaled_dot_product_attention": attention,
    "cross_entropy_loss": cross_entropy,
}
