"""Calls that are better seen as other calls: several outputs as slices, recurrent layers as cells, a class loss as a
score for each sample and their mean.

A rewrite gets the call's inputs by slot, its other arguments and the shapes of its outputs, emits other calls, and
returns the values that stand for the outputs; None leaves the call as it is.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce
from typing import Any

import torch

from ..errors import CaptureError
from . import steps
from .attention import attention
from .indexing import index, index_select
from .trace import Inputs, Recorder, Shape

Rewrite = Callable[[Recorder, Inputs, dict[str, Any], list[Shape]], list[int] | None]


def listed(inputs: Inputs, name: str) -> list[int]:
    """The values of a list argument."""
    found = [(int(slot.partition(".")[2]), value) for slot, value in inputs.items() if slot.startswith(f"{name}.")]
    return [value for _, value in sorted(found)]


# Several outputs


def split(to: Recorder, inputs: Inputs, args: dict[str, Any], outputs: list[Shape]) -> list[int]:
    """Equal pieces are a view and selections, so that what makes them splits inside each piece; others are slices."""
    value = inputs["self"]
    shape = to.shape(value)
    axis = int(args.get("dim", 0)) % len(shape)
    sizes = [out[axis] for out in outputs]
    if len(set(sizes)) == 1 and len(sizes) > 1:
        viewed = steps.view(to, value, (*shape[:axis], len(sizes), sizes[0], *shape[axis + 1 :]))
        return [steps.select(to, viewed, axis, i) for i in range(len(sizes))]
    ends = [sum(sizes[: i + 1]) for i in range(len(sizes))]
    return [steps.slice(to, value, axis, end - size, end) for size, end in zip(sizes, ends)]


def unbind(to: Recorder, inputs: Inputs, args: dict[str, Any], outputs: list[Shape]) -> list[int]:
    value = inputs["self"]
    axis = int(args.get("dim", 0)) % len(to.shape(value))
    return [steps.select(to, value, axis, i) for i in range(len(outputs))]


def broadcast_tensors(to: Recorder, inputs: Inputs, args: dict[str, Any], outputs: list[Shape]) -> list[int]:
    return [steps.expand(to, value, out) for value, out in zip(listed(inputs, "tensors"), outputs)]


# Shapes


def view(to: Recorder, inputs: Inputs, args: dict[str, Any], outputs: list[Shape]) -> list[int]:
    """Whatever keeps the elements in their order is a view."""
    value = inputs["self"]
    return [steps.view(to, value, outputs[0])]


def expand_as(to: Recorder, inputs: Inputs, args: dict[str, Any], outputs: list[Shape]) -> list[int]:
    return broadcast_tensors(to, {"tensors.0": inputs["self"]}, {}, outputs)


def cat(to: Recorder, inputs: Inputs, args: dict[str, Any], outputs: list[Shape]) -> list[int] | None:
    """Of one tensor, itself; of several types, the widest of them."""
    if len(inputs) == 1 and to.shape(next(iter(inputs.values()))) == outputs[0]:
        return list(inputs.values())
    dtypes = {to.dtype(value) for value in inputs.values()}
    if len(dtypes) == 1:
        return None
    widest = reduce(torch.promote_types, (getattr(torch, dtype) for dtype in dtypes))
    kind = "cat" if len(to.shape(next(iter(inputs.values())))) == len(outputs[0]) else "stack"
    return to.emit(kind, {slot: steps.cast(to, value, str(widest)) for slot, value in inputs.items()}, args, outputs[0])


def cast(to: Recorder, inputs: Inputs, args: dict[str, Any], outputs: list[Shape]) -> list[int]:
    value = inputs["self"]
    other = f"torch.{to.dtype(inputs['other'])}" if "other" in inputs else None
    dtype = other or args.get("dtype") or f"torch.{to.dtype(value)}"
    return [steps.cast(to, value, dtype)]


def extreme(kind: str) -> Rewrite:
    """Of two tensors, the larger or smaller of each pair."""

    def rewrite(to: Recorder, inputs: Inputs, args: dict[str, Any], outputs: list[Shape]) -> list[int] | None:
        return to.emit(kind, inputs, args, outputs[0], pointwise=True) if "other" in inputs else None

    return rewrite


def dropout(to: Recorder, inputs: Inputs, args: dict[str, Any], outputs: list[Shape]) -> list[int]:
    if not args["train"] or args["p"] == 0:
        return [inputs["input"]]
    return to.emit("native_dropout", inputs, args, outputs[0])


def slice_scatter(to: Recorder, inputs: Inputs, args: dict[str, Any], outputs: list[Shape]) -> list[int] | None:
    """What lies before the slice, the source, what lies after it."""
    value, source, shape = inputs["self"], inputs["src"], outputs[0]
    axis = int(args["dim"]) % len(shape)
    if args["step"] != 1 or to.dtype(source) != to.dtype(value):
        return None
    start, _, _ = slice(args["start"], args["end"]).indices(shape[axis])
    end = start + to.shape(source)[axis]
    pieces = [steps.slice(to, value, axis, 0, start)] if start else []
    pieces += [source]
    pieces += [steps.slice(to, value, axis, end, shape[axis])] if end < shape[axis] else []
    return [steps.cat(to, pieces, axis)]


def select_scatter(to: Recorder, inputs: Inputs, args: dict[str, Any], outputs: list[Shape]) -> list[int] | None:
    axis = int(args["dim"]) % len(outputs[0])
    index = int(args["index"]) % outputs[0][axis]
    shape = to.shape(inputs["src"])
    source = steps.view(to, inputs["src"], (*shape[:axis], 1, *shape[axis:]))
    where = {"dim": axis, "start": index, "end": index + 1, "step": 1}
    return slice_scatter(to, {"self": inputs["self"], "src": source}, where, outputs)


def pixel_shuffle(to: Recorder, inputs: Inputs, args: dict[str, Any], outputs: list[Shape]) -> list[int]:
    *outer, channels, height, width = to.shape(inputs["self"])
    factor, rank = args["upscale_factor"], len(outer)
    fine = steps.view(to, inputs["self"], (*outer, channels // factor**2, factor, factor, height, width))
    moved = steps.permute(to, fine, [*range(rank + 1), rank + 3, rank + 1, rank + 4, rank + 2])
    return [steps.view(to, moved, outputs[0])]


def copy(to: Recorder, inputs: Inputs, args: dict[str, Any], outputs: list[Shape]) -> list[int] | None:
    """What is left of an assignment: the source, in the target's shape."""
    source = steps.cast(to, inputs["src"], f"torch.{to.dtype(inputs['self'])}")
    return [steps.expand(to, source, outputs[0])]


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
            value = steps.cat(to, [steps.slice(to, value, axis, at, size), steps.slice(to, value, axis, 0, at)], axis)
    return [value]


def pad(to: Recorder, inputs: Inputs, args: dict[str, Any], outputs: list[Shape]) -> list[int] | None:
    if args["mode"] != "constant":
        return None
    options = {"pad": args["pad"], "value": args["value"] or 0.0}
    return to.emit("constant_pad_nd", inputs, options, outputs[0])


def embedding(to: Recorder, inputs: Inputs, args: dict[str, Any], outputs: list[Shape]) -> list[int] | None:
    """All rows one after the other, as of learned positions, are the weight: no op of its own, that some device would
    have to do for all. Rows that are left out would get no gradient, where a table's get zeros, which decay with it."""
    _refuse_sparse(to, inputs, args)
    weight = inputs["weight"]
    all_rows = to.counts(inputs["indices"], to.shape(weight)[0])
    if not all_rows or args.get("scale_grad_by_freq") or args.get("padding_idx", -1) >= 0:
        return None
    return [steps.view(to, weight, outputs[0])]


def _refuse_sparse(to: Recorder, inputs: Inputs, args: dict[str, Any]) -> None:
    """Gradients are dense here. An optimizer treats those of a sparse table differently: rows that no sample looked up
    stay as they are, where Adam's moments and weight decay would change them."""
    if args.get("sparse") and to.trace.values[inputs["weight"]].grad:
        name = to.trace.values[inputs["weight"]].name
        raise CaptureError(
            f"{name!r} is looked up with sparse=True, but gradients are dense here; leave out sparse=True"
        )


def routed_mm(to: Recorder, inputs: Inputs, args: dict[str, Any], outputs: list[Shape]) -> list[int] | None:
    """Our own op, of all experts."""
    return None if args["first"] or args["total"] else to.emit("routed_mm", inputs, {}, outputs[0])


def embedding_bag(to: Recorder, inputs: Inputs, args: dict[str, Any], outputs: list[Shape]) -> list[int] | None:
    """Bags of equal size are rows of look-ups that are added up or averaged."""
    _refuse_sparse(to, inputs, args)
    bags, count = outputs[0][0], to.shape(inputs["indices"])[0]
    if args.get("mode") not in (0, 1) or "per_sample_weights" in inputs or count % bags:
        return None
    if args.get("padding_idx") not in (None, -1) or not to.counts(inputs["offsets"], bags, count // bags):
        return None
    rows = steps.view(to, inputs["indices"], (bags, count // bags))
    width = to.shape(inputs["weight"])[1]
    options = {"padding_idx": -1, "scale_grad_by_freq": False, "sparse": False}
    found = to.emit("embedding", {"weight": inputs["weight"], "indices": rows}, options, (bags, count // bags, width))
    kind = ("sum", "dim_IntList") if args["mode"] == 0 else ("mean", "dim")
    reduce = {"dim": [1], "keepdim": False, "dtype": None}
    return to.emit(kind[0], {"self": found[0]}, reduce, (bags, width), overload=kind[1])


def glu(to: Recorder, inputs: Inputs, args: dict[str, Any], outputs: list[Shape]) -> list[int]:
    """One half, gated by the other."""
    half, gate = split(to, inputs, args, [outputs[0]] * 2)
    gate = to.emit("sigmoid", {"self": gate}, {}, outputs[0], pointwise=True)[0]
    return to.emit("mul", {"self": half, "other": gate}, {}, outputs[0], overload="Tensor", pointwise=True)


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
        x = steps.permute(to, inputs["input"], [1, 0, 2]) if args["batch_first"] else inputs["input"]
        lasts: list[list[int]] = []
        for layer in range(args["num_layers"]):
            runs = []
            for direction in range(directions):
                number = layer * directions + direction
                names = ("w_ih", "w_hh", "b_ih", "b_hh")[:count]
                weights = dict(zip(names, params[number * count : (number + 1) * count]))
                first = [steps.select(to, state, 0, number) for state in states]
                y, last = _run_layer(to, x, _Layer(weights, first, direction == 1), cell)
                runs.append(y)
                lasts.append(last)
            x = steps.cat(to, runs, 2)
            if args["dropout"] and args["train"] and layer + 1 < args["num_layers"]:
                x = to.emit("native_dropout", {"input": x}, {"p": args["dropout"], "train": True}, to.shape(x))[0]
        final = [steps.stack(to, [last[k] for last in lasts], 0) for k in range(len(states))]
        return [steps.permute(to, x, [1, 0, 2]) if args["batch_first"] else x, *final]

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
            step = steps.select(to, x, 0, start)
            states = to.emit(f"{cell}_cell", {"input": step, **given, **layer.weights}, {}, *shapes)
            outputs.append(steps.view(to, states[0], (1, sample, hidden)))
        else:
            inputs = {"input": steps.slice(to, x, 0, start, end), **given, **layer.weights}
            every = end - start, sample, hidden
            found = to.emit(f"{cell}_chunk", inputs, {"reverse": layer.reverse}, every, *shapes)
            outputs.append(found[0])
            states = found[1:]
    return steps.cat(to, outputs[::-1] if layer.reverse else outputs, 0), states


# Losses


def cross_entropy(to: Recorder, inputs: Inputs, args: dict[str, Any], outputs: list[Shape]) -> list[int] | None:
    """A loss for each sample, whose classes can be split, and their weighted mean."""
    return _by_class(to, inputs, args, f"torch.{to.dtype(inputs['self'])}")


def likelihood(to: Recorder, inputs: Inputs, args: dict[str, Any], outputs: list[Shape]) -> list[int] | None:
    """Of a softmax: together they are a cross entropy."""
    dtype = f"torch.{to.dtype(inputs['self'])}"
    softmax = to.maker.get(inputs["self"])
    if softmax is not None and softmax.call.kind == "_to_copy":  # autocast casts the logarithms
        softmax = to.maker.get(softmax.inputs[0])
    if softmax is None or softmax.call.kind != "log_softmax":
        return None
    scores, computed = softmax.inputs[0], to.dtype(softmax.outputs[0])
    if softmax.call.args["dim"] not in (1, 1 - len(to.shape(scores))):
        return None
    if "weight" in inputs and to.dtype(inputs["weight"]) != computed:
        return None
    given = inputs | {"self": steps.cast(to, scores, f"torch.{computed}")}
    return _by_class(to, given, args | {"label_smoothing": 0.0}, dtype)


def _by_class(to: Recorder, inputs: Inputs, args: dict[str, Any], dtype: str) -> list[int] | None:
    """`dtype` is that of the mean."""
    shape, target = to.shape(inputs["self"]), inputs["target"]
    if len(shape) < 2 or "int" not in to.dtype(target):
        return None
    each = steps.cast(to, to.emit("class_loss", inputs, args, to.shape(target))[0], dtype)
    if args["reduction"] == 0:
        return [each]
    given = {"self": each, "target": target}
    given |= {"weight": inputs["weight"]} if "weight" in inputs else {}
    return to.emit("class_mean", given, args, ())


REWRITES: dict[str, Rewrite] = {
    **dict.fromkeys(("split", "split_with_sizes", "chunk", "tensor_split"), split),
    "unbind": unbind,
    "broadcast_tensors": broadcast_tensors,
    **dict.fromkeys(("_unsafe_view", "reshape", "reshape_as", "view_as", "ravel", "flatten", "unflatten"), view),
    **dict.fromkeys(("squeeze", "unsqueeze"), view),
    "expand_as": expand_as,
    "cat": cat,
    "stack": cat,
    "max": extreme("maximum"),
    "min": extreme("minimum"),
    **dict.fromkeys(("to", "type_as"), cast),
    "dropout": dropout,
    "slice_scatter": slice_scatter,
    "select_scatter": select_scatter,
    "pixel_shuffle": pixel_shuffle,
    "glu": glu,
    "copy": copy,
    "roll": roll,
    "index": index,
    "index_select": index_select,
    "pad": pad,
    "embedding": embedding,
    "embedding_bag": embedding_bag,
    "soapstone::routed_mm": routed_mm,
    "lstm": recurrent("lstm"),
    "gru": recurrent("gru"),
    "rnn_tanh": recurrent("rnn_tanh"),
    "rnn_relu": recurrent("rnn_relu"),
    "scaled_dot_product_attention": attention,
    "cross_entropy_loss": cross_entropy,
    **dict.fromkeys(("nll_loss", "nll_loss_nd", "nll_loss2d"), likelihood),
}

# What writing to a part of a tensor makes of the tensor.
SCATTERS: dict[str, Rewrite] = {"slice": slice_scatter, "select": select_scatter}
