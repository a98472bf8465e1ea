"""Normalisation, softmax and dropout."""

from __future__ import annotations

from dataclasses import replace
from math import prod

from .table import Bytes, Call, Partial, Rule, items, times


def _normalised(call: Call) -> str:
    """Layer and RMS norm: the normalised axes are needed whole."""
    inner = " ".join(f"n{i}!" for i in range(len(call.args["normalized_shape"])))
    return ", ".join([f"*b {inner}"] + [inner] * (len(call.shapes) - 1)) + f" -> *b {inner}"


def _statistics(count: int) -> Bytes:
    """So many numbers a row."""
    return lambda call, item: count * prod(call.shapes[0][: -len(call.args["normalized_shape"])]) * item


def _group_norm(call: Call) -> str:
    spatial = " ".join(f"s{i}!" for i in range(len(call.shapes[0]) - 2))
    affine = ", ".join(["(group c!)"] * 2)
    return f"sample (group c!) {spatial}, {affine} -> sample (group c!) {spatial}"


def _along(call: Call) -> str:
    """Ops along some axes that keep their shape: those axes are needed whole."""
    rank = len(call.shapes[0])
    given = call.args.get("dim", call.args.get("dims", -1))
    axes = {axis % max(rank, 1) for axis in ([given] if isinstance(given, int) else given)}
    names = " ".join(f"x{i}!" if i in axes else f"x{i}" for i in range(rank))
    return f"{names} -> {', '.join([names] * len(call.outputs))}"


def _topk(call: Call) -> str:
    """The axis that it picks from is needed whole, and what it picks comes out whole."""
    names = [f"x{i}" for i in range(len(call.shapes[0]))]
    left, right = ([mark if i == call.axis() else n for i, n in enumerate(names)] for mark in ("from!", "k!"))
    return f"{' '.join(left)} -> {', '.join([' '.join(right)] * 2)}"


_BATCH_NORM = Rule(
    "{sample} channel {*s}, channel, channel, channel, channel -> sample channel *s",
    family="batch_norm",
    slots=("input", "weight", "bias", "running_mean", "running_var"),
    partial=Partial("gather", ("channel",), factor=3, finish=lambda call: True),
    flops=times(8),
    extra=lambda call, item: 4 * call.shapes[0][1] * item,
    num_outputs=1,
    name="batch_norm",
    heavy=True,
)

# Parts share nothing, so it runs after its convolution as an activation does. A frozen one stays an op of its own, as
# the batch norm of the whole batch is, so that evaluation finds the ops of the training.
_LOCAL_BATCH_NORM = replace(
    _BATCH_NORM,
    line="sample channel *s, channel, channel, channel, channel -> sample channel *s",
    partial=None,
    heavy=False,
    statistics=True,
)

_SOFTMAX = Rule(_along, family="norm", flops=times(5), saves="outputs")
_DROPOUT = Rule(
    "*b -> *b", family="pointwise", saves="nothing", extra=items(1), draws=True, num_outputs=1, name="dropout"
)

RULES = {
    "local_batch_norm": _LOCAL_BATCH_NORM,
    "_native_batch_norm_legit_no_training": replace(_LOCAL_BATCH_NORM, flops=times(2), heavy=True, statistics=False),
    "causal_fill": Rule("*b length key -> *b length key", family="pointwise", saves="nothing", extra=items(1)),
    "_native_batch_norm_legit_functional": _BATCH_NORM,
    "layer_norm": Rule(_normalised, family="norm", flops=times(8), extra=_statistics(2), heavy=True),
    "rms_norm": Rule(
        _normalised,
        family="norm",
        flops=times(5),
        extra=_statistics(1),  # of the fused kernel, which GPUs have since PyTorch 2.9
        heavy=True,
    ),
    "group_norm": Rule(
        _group_norm,
        family="norm",
        slots=("input", "weight", "bias"),
        sizes=lambda call: {"group": int(call.args["num_groups"])},
        flops=times(8),
        extra=lambda call, item: 2 * call.shapes[0][0] * int(call.args["num_groups"]) * item,
        heavy=True,
    ),
    **dict.fromkeys(("softmax", "_softmax", "log_softmax", "_log_softmax"), _SOFTMAX),
    "_safe_softmax": replace(_SOFTMAX, family="pointwise"),  # with a pointwise op's costs so far
    **dict.fromkeys(("cumsum", "flip"), Rule(_along, family="pointwise", saves="nothing")),
    **dict.fromkeys(("cumprod", "sort"), Rule(_along, family="pointwise", saves="both")),
    "argsort": Rule(_along, family="pointwise", saves="nothing"),
    "topk": Rule(_topk, family="pointwise", flops=lambda call, extents: prod(call.shapes[0]), saves="outputs"),
    **dict.fromkeys(("dropout", "native_dropout"), _DROPOUT),
}
