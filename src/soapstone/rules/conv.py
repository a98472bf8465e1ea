"""Convolution and pooling: windows that slide over height and width."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .notation import Map
from .table import Call, Rule, times


def pair(value: Any, default: tuple[int, int] = (0, 0)) -> tuple[int, int]:
    """torch's int-or-list arguments; an empty list means the default."""
    if isinstance(value, int):
        return value, value
    items = list(value)
    return default if not items else (items[0], items[-1])


def window(kernel: int, stride: int, before: int, dilation: int) -> Map:
    """Output [lo, hi) needs [s lo - before, s (hi - 1) - before + d (k - 1] + 1)."""
    return Map((stride, -before, 1), (stride, dilation * (kernel - 1) + 1 - stride - before, 1))


def conv_padding(args: dict[str, Any], kernel: Sequence[int]) -> tuple[int, int]:
    """The rows and columns of zeros before the first input element."""
    if args["padding"] == "same":
        dilation = pair(args["dilation"])
        return dilation[0] * (kernel[0] - 1) // 2, dilation[1] * (kernel[1] - 1) // 2
    return (0, 0) if args["padding"] == "valid" else pair(args["padding"])


def _conv_maps(call: Call) -> dict[str, Map]:
    stride, dilation, kernel = pair(call.args["stride"]), pair(call.args["dilation"]), call.shape("weight")[2:]
    before = conv_padding(call.args, kernel)
    return {name: window(kernel[i], stride[i], before[i], dilation[i]) for i, name in enumerate(("height", "width"))}


def _pool_maps(call: Call) -> dict[str, Map]:
    kernel = pair(call.args["kernel_size"])
    stride, before = pair(call.args["stride"], kernel), pair(call.args["padding"])
    dilation = pair(call.args.get("dilation", 1))
    return {name: window(kernel[i], stride[i], before[i], dilation[i]) for i, name in enumerate(("height", "width"))}


_POOL = Rule("*b [height] [width] -> *b height width", maps=_pool_maps, heavy=True)

RULES = {
    "conv2d": Rule(
        "sample (group in) [height] [width], (group channel) in kh kw, (group channel)"
        " -> sample (group channel) height width",
        slots=("input", "weight", "bias"),
        sizes=lambda call: {"group": int(call.args["groups"])},
        maps=_conv_maps,
        flops=times(2),
        heavy=True,
    ),
    "max_pool2d": _POOL,
    "avg_pool2d": _POOL,
}
