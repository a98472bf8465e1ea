"""Attention as it was meant: masks and repeated heads that a fused kernel need not be given are recognised."""

from __future__ import annotations

import math
from typing import Any

import torch

from ..errors import CaptureError
from . import steps
from .constants import once
from .trace import Inputs, Recorder, Shape


def attention(to: Recorder, inputs: Inputs, args: dict[str, Any], outputs: list[Shape]) -> list[int] | None:
    inputs, args = _unmasked(to, inputs, args)
    if args["dropout_p"]:
        return _products(to, inputs, args, outputs)
    inputs, args = _grouped(to, inputs, args)
    return to.emit("scaled_dot_product_attention", inputs, args, outputs[0])


def _unmasked(to: Recorder, inputs: Inputs, args: dict[str, Any]) -> tuple[Inputs, dict[str, Any]]:
    """Without a constant mask that hides nothing, or only later places: `is_causal` says that. torch's kernels give NaN
    for that with a scale that is not positive."""
    mask = to.constant(inputs["attn_mask"]) if "attn_mask" in inputs else None
    *outer, length, _ = to.shape(inputs["query"])
    keys = to.shape(inputs["key"])[-2]
    if mask is None or args["is_causal"] or (args["scale"] is not None and args["scale"] <= 0):
        return inputs, args
    wide = *outer, length, keys
    if mask.ndim > len(wide) or any(n not in (1, m) for n, m in zip(mask.shape[::-1], wide[::-1])):
        return inputs, args
    mask = once(mask)
    visible = mask if mask.dtype == torch.bool else mask == 0
    if mask.dtype != torch.bool and not bool((visible | (mask <= torch.finfo(mask.dtype).min)).all()):
        return inputs, args
    causal = length == keys and bool((visible == torch.ones(length, keys, dtype=torch.bool).tril()).all())
    if not causal and not bool(visible.all()):
        return inputs, args
    return {slot: value for slot, value in inputs.items() if slot != "attn_mask"}, args | {"is_causal": causal}


def _grouped(to: Recorder, inputs: Inputs, args: dict[str, Any]) -> tuple[Inputs, dict[str, Any]]:
    """With the keys and values before they were repeated for the query heads that share them. Not with a mask, beside
    which no fused kernel takes fewer heads."""
    key, value = _once_for_each_head(to, inputs["key"]), _once_for_each_head(to, inputs["value"])
    if key is None or value is None or "attn_mask" in inputs or to.shape(key)[:-2] != to.shape(value)[:-2]:
        return inputs, args
    if to.shape(inputs["query"])[:-2] != to.shape(inputs["key"])[:-2]:
        return inputs, args
    return inputs | {"key": key, "value": value}, args | {"enable_gqa": True}


def _once_for_each_head(to: Recorder, value: int) -> int | None:
    """What `repeat_kv` of transformers was given: it is viewed, expanded and viewed again; autocast casts that."""
    cast = to.maker.get(value)
    found = cast.inputs[0] if cast is not None and cast.call.kind == "_to_copy" else value
    shapes = [to.shape(found)]
    for kind in ("view", "expand", "view"):
        call = to.maker.get(found)
        if call is None or call.call.kind != kind:
            return None
        found = call.inputs[0]
        shapes.append(to.shape(found))
    merged, wide, single, own = shapes
    if len(own) != 4 or len(wide) != 5:
        return None
    sample, heads, length, width = own
    shared = wide[2]
    is_it = (
        single == (sample, heads, 1, length, width)
        and wide == (sample, heads, shared, length, width)
        and merged == (sample, heads * shared, length, width)
    )
    return steps.cast(to, found, f"torch.{to.dtype(value)}") if is_it else None


def _products(to: Recorder, inputs: Inputs, args: dict[str, Any], outputs: list[Shape]) -> list[int]:
    """With dropout, attention is its products, so that dropout falls on the weights as torch's own does."""
    p = args["dropout_p"]
    q, k, v = inputs["query"], inputs["key"], inputs["value"]
    if to.shape(q)[:-2] != to.shape(k)[:-2]:
        raise CaptureError("attention with dropout and grouped queries has no rule; repeat the keys and values")
    *outer, length, width = to.shape(q)
    keys = to.shape(k)[-2]
    scale = args["scale"] if args["scale"] is not None else 1 / math.sqrt(width)
    rank = len(to.shape(k))
    k = steps.permute(to, k, [*range(rank - 2), rank - 1, rank - 2])
    (scores,) = to.emit("matmul", {"self": q, "other": k}, {}, (*outer, length, keys))
    shape = to.shape(scores)
    (scores,) = to.emit("mul", {"self": scores}, {"other": scale}, shape, overload="Scalar", pointwise=True)
    if args["is_causal"]:
        (scores,) = to.emit("causal_fill", {"self": scores}, {}, shape)
    elif "attn_mask" in inputs:
        scores = _masked(to, scores, inputs["attn_mask"])
    (weights,) = to.emit("_safe_softmax", {"self": scores}, {"dim": -1, "dtype": None}, shape)
    (weights,) = to.emit("native_dropout", {"input": weights}, {"p": p, "train": True}, shape)
    return to.emit("matmul", {"self": weights, "other": v}, {}, outputs[0])


def _masked(to: Recorder, scores: int, mask: int) -> int:
    shape = to.shape(scores)
    if to.dtype(mask) != "bool":
        both = {"self": scores, "other": mask}
        return to.emit("add", both, {"alpha": 1}, shape, overload="Tensor", pointwise=True)[0]
    (hidden,) = to.emit("logical_not", {"self": mask}, {}, to.shape(mask), pointwise=True)
    both, fill = {"self": scores, "mask": hidden}, {"value": -math.inf}
    return to.emit("masked_fill", both, fill, shape, overload="Scalar", pointwise=True)[0]
