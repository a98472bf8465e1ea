"""What each step computes on one part. A step without a kernel here calls torch's own op on its local inputs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any, Protocol

import torch
import torch.nn.functional as F

from ..graph import Step
from ..rules.conv import conv_padding, pair
from ..rules.loss import MEAN, SUM
from .frames import Box, lengths

Tensors = dict[str, torch.Tensor]  # by slot


class Draws(Protocol):
    """Where dropout masks come from."""

    def keep(self, place: Place) -> torch.Tensor:
        """Which of the part's elements stay."""
        ...


@dataclass(frozen=True)
class Place:
    """One step of one part: which of its dims and of each input it has."""

    step: Step
    dims: Box
    needs: Sequence[Box]
    draws: Draws | None = None
    updates: dict[int, torch.Tensor] = field(default_factory=dict)

    @property
    def args(self) -> dict[str, Any]:
        return self.step.args

    def shape(self, output: int = 0) -> list[int]:
        """The local shape of an output."""
        extents = lengths(self.dims)
        return [prod(extents[d] for d in axis) for axis in self.step.writes[output]]

    def interval(self, name: str) -> tuple[int, int]:
        return next(box for dim, box in zip(self.step.dims, self.dims) if dim.name == name)

    def size(self, name: str) -> int:
        """The whole size of a dim, all its factors together."""
        return prod(dim.size for dim in self.step.dims if dim.name == name)

    def extent(self, name: str) -> int:
        return self.step.sizes(list(self.dims))[name]


Kernel = Callable[[Place, Tensors], Any]
KERNELS: dict[str, Kernel] = {}
PARTIALS: dict[str, tuple[Kernel, Callable[[Place, Tensors, torch.Tensor], Any]]] = {}


def kernel(*kinds: str) -> Callable[[Kernel], Kernel]:
    def register(function: Kernel) -> Kernel:
        KERNELS.update(dict.fromkeys(kinds, function))
        return function

    return register


def call(place: Place, inputs: Tensors) -> Any:
    """torch's own op, its lists put together again."""
    step = place.step
    overload = getattr(getattr(torch.ops.aten, step.kind), step.overload or "default")
    arguments: dict[str, Any] = {name: _argument(value) for name, value in step.args.items()}
    for slot, tensor in inputs.items():
        name, dot, _ = slot.partition(".")
        if dot:
            arguments.setdefault(name, []).append(tensor)
        else:
            arguments[name] = tensor
    return overload(**arguments)


def compute(place: Place, inputs: Tensors) -> Any:
    """What the step makes of its local inputs."""
    return (KERNELS.get(place.step.kind, call) if place.step.ruled else call)(place, inputs)


def _argument(value: Any) -> Any:
    if isinstance(value, str) and value.startswith("torch."):
        return getattr(torch, value.removeprefix("torch."))
    return value


# Shape


@kernel("view", "_unsafe_view", "reshape", "flatten", "unsqueeze", "squeeze")
def _view(place: Place, inputs: Tensors) -> torch.Tensor:
    return inputs["self"].reshape(place.shape())


@kernel("expand")
def _expand(place: Place, inputs: Tensors) -> torch.Tensor:
    return inputs["self"].expand(place.shape())


@kernel("cat")
def _cat(place: Place, inputs: Tensors) -> torch.Tensor:
    filled = [x for x in inputs.values() if x.numel()]
    return torch.cat(filled, place.args["dim"]) if filled else next(iter(inputs.values())).new_zeros(place.shape())


@kernel("stack")
def _stack(place: Place, inputs: Tensors) -> torch.Tensor:
    wanted = [x for x, need in zip(inputs.values(), place.needs) if all(hi > lo for lo, hi in need)]
    return torch.stack(wanted, place.args["dim"]) if wanted else next(iter(inputs.values())).new_zeros(place.shape())


@kernel("slice")
def _slice(place: Place, inputs: Tensors) -> torch.Tensor:
    x = inputs["self"]
    cut = [slice(None)] * x.ndim
    cut[place.args["dim"]] = slice(None, None, place.args["step"])
    return x[tuple(cut)]


@kernel("select")
def _select(place: Place, inputs: Tensors) -> torch.Tensor:
    return inputs["self"].squeeze(place.args["dim"])


# Windows


def _padded(
    place: Place, x: torch.Tensor, kernel: tuple[int, int], stride: tuple[int, int], before: tuple[int, int],
    dilation: tuple[int, int], fill: float,
) -> torch.Tensor:  # fmt: skip
    """The rows and columns that the part's windows cover, with what lies outside the input filled in."""
    pads: list[int] = []
    for i, name in reversed(list(enumerate(("height", "width")))):
        lo, hi = place.interval(name)
        start = stride[i] * lo - before[i]
        end = stride[i] * (hi - 1) - before[i] + dilation[i] * (kernel[i] - 1) + 1
        have_lo, have_hi = place.needs[0][-2 + i]
        if have_hi <= have_lo:
            have_lo = have_hi = start
        pads += [have_lo - start, end - have_hi]
    return F.pad(x, pads, value=fill) if any(pads) else x


@kernel("conv2d")
def _conv2d(place: Place, inputs: Tensors) -> torch.Tensor:
    weight, stride, dilation = inputs["weight"], pair(place.args["stride"]), pair(place.args["dilation"])
    size = (weight.shape[2], weight.shape[3])
    x = _padded(place, inputs["input"], size, stride, conv_padding(place.args, size), dilation, 0.0)
    groups = place.extent("group")
    return F.conv2d(x, weight, inputs.get("bias"), stride, 0, dilation, groups)


@kernel("max_pool2d")
def _max_pool2d(place: Place, inputs: Tensors) -> torch.Tensor:
    size = pair(place.args["kernel_size"])
    stride, dilation = pair(place.args["stride"], size), pair(place.args["dilation"])
    x = _padded(place, inputs["self"], size, stride, pair(place.args["padding"]), dilation, -torch.inf)
    pooled: torch.Tensor = F.max_pool2d(x, size, stride, 0, dilation)
    return pooled


@kernel("avg_pool2d")
def _avg_pool2d(place: Place, inputs: Tensors) -> torch.Tensor:
    size, before = pair(place.args["kernel_size"]), pair(place.args["padding"])
    stride = pair(place.args["stride"], size)
    x = _padded(place, inputs["self"], size, stride, before, (1, 1), 0.0)
    total: torch.Tensor = F.avg_pool2d(x, size, stride, 0, divisor_override=1)
    fixed: int | None = place.args["divisor_override"]
    if fixed is not None:
        return total / fixed
    counts = [_window_counts(place, i, size[i], stride[i], before[i]) for i in (0, 1)]
    return total / (counts[0][:, None] * counts[1][None, :]).to(total)


def _window_counts(place: Place, i: int, size: int, stride: int, before: int) -> torch.Tensor:
    """How many elements each window along one axis averages over."""
    whole = place.step.reads[0][-2 + i][-1].size
    first, last = place.interval(("height", "width")[i])
    start = torch.arange(first, last) * stride - before
    outer = before if place.args["count_include_pad"] else 0
    return (start + size).clamp(max=whole + outer) - start.clamp(min=-outer)


# Recurrent


@kernel("lstm_cell")
def _lstm_cell(place: Place, inputs: Tensors) -> tuple[torch.Tensor, torch.Tensor]:
    """Some hidden units of a cell: torch's own takes no whole h beside a local c."""
    gates = F.linear(inputs["input"], inputs["w_ih"], inputs.get("b_ih"))
    gates = gates + F.linear(inputs["hx.0"], inputs["w_hh"], inputs.get("b_hh"))
    i, f, g, o = gates.chunk(4, 1)
    cell = torch.sigmoid(f) * inputs["hx.1"] + torch.sigmoid(i) * torch.tanh(g)
    return torch.sigmoid(o) * torch.tanh(cell), cell


# Random


@kernel("dropout", "native_dropout")
def _dropout(place: Place, inputs: Tensors) -> torch.Tensor:
    x, p = next(iter(inputs.values())), float(place.args["p"])
    if p == 0 or not place.args["train"]:
        return x
    if p == 1:
        return x * 0
    assert place.draws is not None
    return x * place.draws.keep(place).to(x.dtype) / (1 - p)


# Combined: a partial, and what is left to do once it is whole


def combined(kind: str) -> Callable[[Any], Any]:
    def register(functions: Any) -> Any:
        PARTIALS[kind] = (functions.partial, functions.finish)
        return functions

    return register


class _Sum:
    """The partial is the result, up to a sum."""

    @staticmethod
    def partial(place: Place, inputs: Tensors) -> torch.Tensor:
        result: torch.Tensor = compute(place, inputs)
        return result

    @staticmethod
    def finish(place: Place, inputs: Tensors, total: torch.Tensor) -> torch.Tensor:
        return total


for _kind in ("matmul", "mm", "bmm", "sum", "mean", "embedding", "mse_loss"):
    combined(_kind)(_Sum)


@combined("linear")
class _Linear:
    @staticmethod
    def partial(place: Place, inputs: Tensors) -> torch.Tensor:
        return F.linear(inputs["input"], inputs["weight"])

    @staticmethod
    def finish(place: Place, inputs: Tensors, total: torch.Tensor) -> torch.Tensor:
        return total + inputs["bias"] if "bias" in inputs else total


@kernel("embedding")
def _embedding(place: Place, inputs: Tensors) -> torch.Tensor:
    """Rows that this part has; zeros for the others, which another part looks up."""
    lo, hi = place.interval("vocab")
    indices = inputs["indices"]
    inside = (indices >= lo) & (indices < hi)
    rows = F.embedding(torch.where(inside, indices - lo, 0), inputs["weight"])
    rows = rows if hi - lo == place.size("vocab") else rows * inside[..., None].to(rows.dtype)
    padding = place.args["padding_idx"]
    if padding >= 0:  # this row gets no gradient
        rows = torch.where((indices == padding)[..., None], rows.detach(), rows)
    return rows


@kernel("mean")
def _mean(place: Place, inputs: Tensors) -> torch.Tensor:
    x, dims = inputs["self"], place.args.get("dim") or None
    reduced = prod(d.size for d in place.step.dims if d.name.startswith("r"))
    dtype = _argument(place.args.get("dtype"))
    return torch.sum(x, dims, keepdim=bool(place.args.get("keepdim")), dtype=dtype) / reduced


@kernel("sum")
def _sum(place: Place, inputs: Tensors) -> torch.Tensor:
    dims = place.args.get("dim") or None
    keep = bool(place.args.get("keepdim"))
    return torch.sum(inputs["self"], dims, keepdim=keep, dtype=_argument(place.args.get("dtype")))


@kernel("mse_loss")
def _mse_loss(place: Place, inputs: Tensors) -> torch.Tensor:
    squares = (inputs["self"] - inputs["target"]) ** 2
    if place.args["reduction"] == MEAN:
        return squares.sum() / prod(dim.size for dim in place.step.dims)
    return squares.sum() if place.args["reduction"] == SUM else squares


@combined("cross_entropy_loss")
class _CrossEntropy:
    """(sum, weight) over the samples of a part; the finish divides."""

    @staticmethod
    def partial(place: Place, inputs: Tensors) -> torch.Tensor:
        logits, target, weight = inputs["self"], inputs["target"], inputs.get("weight")
        smoothing = place.args["label_smoothing"]
        if target.is_floating_point():
            total = F.cross_entropy(logits, target, weight, reduction="sum", label_smoothing=smoothing)
            return torch.stack([total, total.new_tensor(target.numel() / logits.shape[min(logits.ndim - 1, 1)])])
        ignore = place.args["ignore_index"]
        total = F.cross_entropy(logits, target, weight, ignore_index=ignore, reduction="sum", label_smoothing=smoothing)
        counted = target != ignore
        if weight is None:
            return torch.stack([total, counted.sum().to(total)])
        return torch.stack([total, (weight[torch.where(counted, target, 0)] * counted).sum().to(total)])

    @staticmethod
    def finish(place: Place, inputs: Tensors, total: torch.Tensor) -> torch.Tensor:
        return total[0] / total[1] if place.args["reduction"] == MEAN else total[0]


@combined("_native_batch_norm_legit_functional")
class _BatchNorm:
    """(count, mean, M2) of each part, merged by Chan's formula: sums of squares would lose digits."""

    @staticmethod
    def partial(place: Place, inputs: Tensors) -> torch.Tensor:
        x = inputs["input"]
        axes = [i for i in range(x.ndim) if i != 1]
        mean = x.mean(axes)
        second = ((x - mean.view(_channels(x))) ** 2).sum(axes)
        return torch.stack([torch.full_like(mean, x.numel() // x.shape[1]), mean, second])

    @staticmethod
    def finish(place: Place, inputs: Tensors, gathered: torch.Tensor) -> torch.Tensor:
        counts, means, seconds = gathered.unbind(1)
        count = counts.detach().sum(0)
        mean = (counts * means).sum(0) / count
        variance = (seconds + counts * (means - mean) ** 2).sum(0) / count
        x, eps = inputs["input"], place.args["eps"]
        scale = torch.rsqrt(variance + eps)
        if "weight" in inputs:
            scale = scale * inputs["weight"]
        y = (x - mean.view(_channels(x))) * scale.view(_channels(x))
        if "running_mean" in inputs:
            momentum = place.args["momentum"]
            unbiased = variance.detach() * count / (count - 1).clamp(min=1)
            place.updates[3] = torch.lerp(inputs["running_mean"], mean.detach(), momentum)
            place.updates[4] = torch.lerp(inputs["running_var"], unbiased, momentum)
        return y + inputs["bias"].view(_channels(x)) if "bias" in inputs else y


def _channels(x: torch.Tensor) -> list[int]:
    return [1, -1] + [1] * (x.ndim - 2)
