"""Convolutions and pools: a part gets the rows that its windows cover, and pads what lies outside the input itself."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from ...rules.conv import conv_padding, spatial_names, tuple_of
from ..place import Place, Tensors, call, kernel

_CONV = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}
_CONV_TRANSPOSED = {1: F.conv_transpose1d, 2: F.conv_transpose2d, 3: F.conv_transpose3d}
_MAX_POOL = {1: F.max_pool1d, 2: F.max_pool2d, 3: F.max_pool3d}


def _have(place: Place, i: int, count: int) -> tuple[int, int]:
    """The interval of the input along spatial axis i."""
    return place.needs[0][len(place.needs[0]) - count + i]


def _own_padding(
    place: Place, size: tuple[int, ...], stride: tuple[int, ...], before: tuple[int, ...], dilation: tuple[int, ...]
) -> bool:
    """Whether torch can pad: the part has every spatial axis whole, and torch counts as many windows."""
    for i, name in enumerate(spatial_names(len(size))):
        n = place.step.reads[0][len(place.step.reads[0]) - len(size) + i][-1].size
        windows = (n + 2 * before[i] - dilation[i] * (size[i] - 1) - 1) // stride[i] + 1
        if not place.all_of(name) or _have(place, i, len(size)) != (0, n) or windows != place.size(name):
            return False
    return True


def _padded(
    place: Place, x: torch.Tensor, kernel: tuple[int, ...], stride: tuple[int, ...], before: tuple[int, ...],
    dilation: tuple[int, ...], fill: float,
) -> torch.Tensor:  # fmt: skip
    """The rows and columns that the part's windows cover, with what lies outside the input filled in."""
    pads: list[int] = []
    names = spatial_names(len(kernel))
    for i, name in reversed(list(enumerate(names))):
        lo, hi = place.interval(name)
        start = stride[i] * lo - before[i]
        end = stride[i] * (hi - 1) - before[i] + dilation[i] * (kernel[i] - 1) + 1
        have_lo, have_hi = _have(place, i, len(names))
        if have_hi <= have_lo:
            have_lo = have_hi = start
        pads += [have_lo - start, end - have_hi]
    return F.pad(x, pads, value=fill) if any(pads) else x


@kernel("conv1d", "conv2d", "conv3d")
def _conv(place: Place, inputs: Tensors) -> torch.Tensor:
    weight = inputs["weight"]
    size = tuple(weight.shape[2:])
    stride, dilation = tuple_of(place.args["stride"], len(size)), tuple_of(place.args["dilation"], len(size))
    x, before = inputs["input"], conv_padding(place.args, size)
    if not _own_padding(place, size, stride, before, dilation):
        x, before = _padded(place, x, size, stride, before, dilation, 0.0), (0,) * len(size)
    y: torch.Tensor = _CONV[len(size)](x, weight, inputs.get("bias"), stride, before, dilation, place.extent("group"))
    return y


@kernel("conv_transpose1d", "conv_transpose2d", "conv_transpose3d")
def _conv_transpose(place: Place, inputs: Tensors) -> torch.Tensor:
    """The local inputs reach from some first to some last output row; crop or zero-pad that to the part's own."""
    x, weight = inputs["input"], inputs["weight"]
    size = tuple(weight.shape[2:])
    stride, dilation, before = (tuple_of(place.args[n], len(size)) for n in ("stride", "dilation", "padding"))
    if x.numel() == 0:
        y = x.new_zeros(place.shape())
    else:
        groups = place.extent("group")
        y = _CONV_TRANSPOSED[len(size)](x, weight, None, stride, 0, 0, groups, dilation)
        pads: list[int] = []
        for i, name in reversed(list(enumerate(spatial_names(len(size))))):
            lo, hi = place.interval(name)
            first = _have(place, i, len(size))[0] * stride[i] - before[i]
            pads += [first - lo, hi - (first + y.shape[2 + i])]
        y = F.pad(y, pads)
    return y + inputs["bias"].view(1, -1, *[1] * len(size)) if "bias" in inputs else y


@kernel("max_pool1d", "max_pool2d", "max_pool3d")
def _max_pool(place: Place, inputs: Tensors) -> torch.Tensor:
    count = int(place.step.kind[-2])
    size = tuple_of(place.args["kernel_size"], count)
    stride, dilation = tuple_of(place.args["stride"], count, size), tuple_of(place.args["dilation"], count)
    x, before = inputs["self"], tuple_of(place.args["padding"], count)
    if not _own_padding(place, size, stride, before, dilation):
        x, before = _padded(place, x, size, stride, before, dilation, -torch.inf), (0,) * count
    y: torch.Tensor = _MAX_POOL[count](x, size, stride, before, dilation)
    return y


@kernel("avg_pool1d", "avg_pool2d")
def _avg_pool(place: Place, inputs: Tensors) -> torch.Tensor:
    count = int(place.step.kind[-2])
    size, before = tuple_of(place.args["kernel_size"], count), tuple_of(place.args["padding"], count)
    stride = tuple_of(place.args["stride"], count, size)
    if _own_padding(place, size, stride, before, (1,) * count):
        return call(place, inputs)  # type: ignore[no-any-return]
    x = _padded(place, inputs["self"], size, stride, before, (1,) * count, 0.0)
    if count == 1:
        total = F.avg_pool1d(x, size, stride, 0) * size[0]
    else:
        total = F.avg_pool2d(x, size, stride, 0, divisor_override=1)
    fixed: int | None = place.args.get("divisor_override")
    if fixed is not None:
        return total / fixed
    for i in range(count):
        counts = _window_counts(place, i, count, size[i], stride[i], before[i]).to(total)
        total = total / counts.view([-1] + [1] * (count - 1 - i))
    return total


def _window_counts(place: Place, i: int, count: int, size: int, stride: int, before: int) -> torch.Tensor:
    """How many elements each window along one axis averages over."""
    whole = place.step.reads[0][len(place.step.reads[0]) - count + i][-1].size
    first, last = place.interval(spatial_names(count)[i])
    start = torch.arange(first, last) * stride - before
    outer = before if place.args["count_include_pad"] else 0
    return (start + size).clamp(max=whole + outer) - start.clamp(min=-outer)


def _bins(place: Place, i: int, count: int) -> list[tuple[int, int]]:
    """The local input interval of each output along one axis of an adaptive pool."""
    factor = place.step.reads[0][len(place.step.reads[0]) - count + i][-1]
    name = spatial_names(count)[i]
    (first, last), out = place.interval(name), place.size(name)
    start = _have(place, i, count)[0]
    return [(k * factor.size // out - start, -(-(k + 1) * factor.size // out) - start) for k in range(first, last)]


@kernel("adaptive_avg_pool1d", "adaptive_avg_pool2d")
def _adaptive_avg_pool(place: Place, inputs: Tensors) -> torch.Tensor:
    """Averages along one axis after the other, as products with a matrix of bins."""
    if all(map(place.all_of, spatial_names(int(place.step.kind[-2])))):
        return call(place, inputs)  # type: ignore[no-any-return]
    x, count = inputs["self"], int(place.step.kind[-2])
    for i in range(count):
        axis = x.ndim - count + i
        bins = _bins(place, i, count)
        matrix = x.new_zeros(len(bins), x.shape[axis])
        for row, (lo, hi) in enumerate(bins):
            matrix[row, lo:hi] = 1 / (hi - lo)
        x = torch.tensordot(x, matrix, ([axis], [1])).movedim(-1, axis)
    return x


@kernel("adaptive_max_pool1d", "adaptive_max_pool2d")
def _adaptive_max_pool(place: Place, inputs: Tensors) -> torch.Tensor:
    x, count = inputs["self"], int(place.step.kind[-2])
    for i in range(count):
        axis = x.ndim - count + i
        bins = [x.narrow(axis, lo, hi - lo).amax(axis, keepdim=True) for lo, hi in _bins(place, i, count)]
        x = torch.cat(bins, axis)
    return x
