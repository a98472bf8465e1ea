"""Convolution and pooling: windows that slide over length, height and width."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from .notation import Map
from .table import Call, Extents, Rule, times

_NAMES = {1: ("length",), 2: ("height", "width"), 3: ("depth", "height", "width")}


def spatial_names(count: int) -> tuple[str, ...]:
    return _NAMES[count]


def tuple_of(value: Any, count: int, default: tuple[int, ...] | None = None) -> tuple[int, ...]:
    """torch's int-or-list arguments; an empty list means the default."""
    items = [value] if isinstance(value, int) else list(value)
    if not items:
        assert default is not None
        return default
    return tuple(items * count if len(items) == 1 else items)


def window(kernel: int, stride: int, before: int, dilation: int) -> Map:
    """Output [lo, hi) needs [s lo - before, s (hi - 1) - before + d (k - 1) + 1)."""
    return Map((stride, -before, 1), (stride, dilation * (kernel - 1) + 1 - stride - before, 1))


def conv_padding(args: dict[str, Any], kernel: Sequence[int]) -> tuple[int, ...]:
    """The rows and columns of zeros before the first input element."""
    if args["padding"] == "same":
        return tuple(d * (k - 1) // 2 for d, k in zip(tuple_of(args["dilation"], len(kernel)), kernel))
    return (0,) * len(kernel) if args["padding"] == "valid" else tuple_of(args["padding"], len(kernel))


def _count(call: Call) -> int:
    """Over how many axes the windows slide: the number in the op's name."""
    return int(call.kind[-2])


def _conv_maps(call: Call) -> dict[str, Map]:
    kernel = call.shape("weight")[2:]
    stride, dilation = (tuple_of(call.args[name], len(kernel)) for name in ("stride", "dilation"))
    rows = zip(spatial_names(len(kernel)), kernel, stride, conv_padding(call.args, kernel), dilation)
    return {name: window(*row) for name, *row in rows}


def _transposed_maps(call: Call) -> dict[str, Map]:
    """Input i reaches outputs s i - p to s i - p + d (k - 1)."""
    kernel = call.shape("weight")[2:]
    stride, dilation, before = (tuple_of(call.args[name], len(kernel)) for name in ("stride", "dilation", "padding"))
    rows = zip(spatial_names(len(kernel)), kernel, stride, before, dilation)
    return {name: Map((1, p - d * (k - 1) + s - 1, s), (1, p, s)) for name, k, s, p, d in rows}


def _pool_maps(call: Call) -> dict[str, Map]:
    count = _count(call)
    kernel, before = tuple_of(call.args["kernel_size"], count), tuple_of(call.args["padding"], count)
    stride, dilation = tuple_of(call.args["stride"], count, kernel), tuple_of(call.args.get("dilation", 1), count)
    return {name: window(*row) for name, *row in zip(spatial_names(count), kernel, stride, before, dilation)}


def _adaptive_maps(call: Call) -> dict[str, Map]:
    """Output k averages floor(k in / out) to ceil((k + 1) in / out)."""
    count = _count(call)
    sizes = zip(spatial_names(count), call.shapes[0][-count:], call.outputs[0][-count:])
    return {name: Map((inner, 0, outer), (inner, 0, outer)) for name, inner, outer in sizes}


def _conv(count: int, transposed: bool = False) -> Rule:
    names = spatial_names(count)
    mapped, kernel = " ".join(f"[{n}]" for n in names), " ".join(f"k{n}" for n in names)
    weight = f"(group in) channel {kernel}" if transposed else f"(group channel) in {kernel}"
    return Rule(
        f"sample (group in) {mapped}, {weight}, (group channel) -> sample (group channel) {' '.join(names)}",
        family="conv",
        slots=("input", "weight", "bias"),
        sizes=lambda call: {"group": int(call.args["groups"])},
        maps=_transposed_maps if transposed else _conv_maps,
        flops=_transposed_flops if transposed else times(2),
        saves="factors",
        heavy=True,
    )


def _transposed_flops(call: Call, extents: Extents) -> int:
    """Every input element meets every weight of its group once."""
    return 2 * prod(call.shape("input")) * prod(call.shape("weight")[1:])


def _pool_flops(call: Call, extents: Extents) -> int:
    """One for each element of each window, padding included."""
    count = _count(call)
    if "kernel_size" in call.args:
        return prod(call.outputs[0]) * prod(tuple_of(call.args["kernel_size"], count))
    windows = zip(call.shapes[0][-count:], call.outputs[0][-count:])
    return prod(call.outputs[0]) * prod(-(-inner // outer) for inner, outer in windows)


def _pool(count: int, maximum: bool, maps: Any = _pool_maps) -> Rule:
    """The place of each maximum is kept for backward, too, as an int64."""
    names = spatial_names(count)
    return Rule(
        f"*b {' '.join(f'[{n}]' for n in names)} -> *b {' '.join(names)}",
        family="pool",
        maps=maps,
        flops=_pool_flops,
        extra=lambda call, item: 8 * prod(call.outputs[0]) if maximum else 0,
        heavy=True,
        num_outputs=1,
    )


RULES = {
    **{f"conv{n}d": _conv(n) for n in (1, 2, 3)},
    **{f"conv_transpose{n}d": _conv(n, transposed=True) for n in (1, 2, 3)},
    **{f"max_pool{n}d": _pool(n, True) for n in (1, 2, 3)},
    **{f"avg_pool{n}d": _pool(n, False) for n in (1, 2)},
    **{f"adaptive_{kind}_pool{n}d": _pool(n, kind == "max", _adaptive_maps) for kind in ("avg", "max") for n in (1, 2)},
}
