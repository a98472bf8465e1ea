"""Every rule, run whole and in random parts: outputs, gradients and buffer updates agree."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from torch import nn
from transformers.integrations import moe

from soapstone.errors import GraphError
from soapstone.parts import ranges
from soapstone.rules import POINTWISE, RULES, Map, bind
from soapstone.tracing import Workload, capture
from tests.support.split import Function, check_ops, loss_of, rand

Draw = Callable[..., Any]


def smooth(mode: str, axes: int, size: Draw, flag: Draw) -> Any:
    corners, scale = flag(), flag()
    how: dict[str, Any] = {"scale_factor": 2} if scale else {"size": [size(1, 5) for _ in range(axes)]}
    x = rand(2, 3, *(size(2, 4) for _ in range(axes)))
    return lambda x, w: F.interpolate(x * w, mode=mode, align_corners=corners, **how), [x], [rand(1)]


class Cases:
    """One method a rule: draws arguments and returns (function, inputs, parameters)."""

    def linear(self, size: Draw, flag: Draw) -> Any:
        shape = [size(1, 5) for _ in range(size(0, 2))] + [size(1, 7)]
        out, bias = size(1, 7), flag()
        weights = [rand(out, shape[-1])] + ([rand(out)] if bias else [])
        return lambda x, *w: F.linear(x, *w), [rand(*shape)], weights

    def matmul(self, size: Draw, flag: Draw) -> Any:
        b, m, k, n = (size(1, 5) for _ in range(4))
        left = [rand(k), rand(m, k), rand(b, m, k), rand(2, 1, m, k)][size(0, 3)]
        right = [rand(k), rand(k, n), rand(b, k, n)][size(0, 2)]
        return lambda x, w: x @ w, [left], [right]

    def mm(self, size: Draw, flag: Draw) -> Any:
        m, k, n = (size(1, 7) for _ in range(3))
        return torch.mm, [rand(m, k)], [rand(k, n)]

    def bmm(self, size: Draw, flag: Draw) -> Any:
        b, m, k, n = (size(1, 6) for _ in range(4))
        return torch.bmm, [rand(b, m, k)], [rand(b, k, n)]

    def embedding(self, size: Draw, flag: Draw) -> Any:
        vocab, channel, shape = size(2, 9), size(1, 6), [size(1, 5) for _ in range(size(1, 2))]
        padding = size(0, vocab - 1) if flag() else None
        ids = torch.randint(0, vocab, shape)
        return lambda i, w: F.embedding(i, w, padding), [ids], [rand(vocab, channel)]

    def conv2d(self, size: Draw, flag: Draw) -> Any:
        groups, kernel, dilation = size(1, 3), (size(1, 4), size(1, 3)), (size(1, 2), size(1, 2))
        stride, padding = (size(1, 3), size(1, 3)), (size(0, 3), size(0, 3))
        spatial = [dilation[i] * (kernel[i] - 1) + 1 + size(0, 6) for i in (0, 1)]
        x = rand(size(1, 4), groups * size(1, 3), *spatial)
        weight, bias = rand(groups * size(1, 3), x.shape[1] // groups, *kernel), flag()
        if flag():
            padding, stride = "same", (1, 1)  # type: ignore[assignment]

        def conv(x: torch.Tensor, *w: torch.Tensor) -> torch.Tensor:
            return F.conv2d(x, *w, stride=stride, padding=padding, dilation=dilation, groups=groups)  # type: ignore[call-overload, no-any-return]

        return conv, [x], [weight, rand(weight.shape[0])] if bias else [weight]

    def max_pool2d(self, size: Draw, flag: Draw) -> Any:
        kernel, dilation = (size(1, 4), size(1, 3)), size(1, 2)
        padding = (size(0, kernel[0] // 2), size(0, kernel[1] // 2))
        spatial = [dilation * (k - 1) + 1 + size(0, 7) for k in kernel]
        stride, ceil = (size(1, 3), size(1, 3)), flag()
        return (
            lambda x, w: F.max_pool2d(x * w, kernel, stride, padding, dilation, ceil),
            [rand(size(1, 3), size(1, 4), *spatial)],
            [rand(1)],
        )

    def avg_pool2d(self, size: Draw, flag: Draw) -> Any:
        kernel = (size(1, 4), size(1, 3))
        padding = (size(0, kernel[0] // 2), size(0, kernel[1] // 2))
        spatial = [k + size(0, 7) for k in kernel]
        stride, ceil, include = (size(1, 3), size(1, 3)), flag(), flag()
        divisor = size(1, 5) if flag() else None
        return (
            lambda x, w: F.avg_pool2d(x * w, kernel, stride, padding, ceil, include, divisor),
            [rand(size(1, 3), size(1, 4), *spatial)],
            [rand(1)],
        )

    def _native_batch_norm_legit_functional(self, size: Draw, flag: Draw) -> Any:
        channel = size(1, 4)
        spatial = [size(1, 4) for _ in range(size(0, 2))]
        norm: nn.Module = [nn.BatchNorm1d, nn.BatchNorm1d, nn.BatchNorm2d][len(spatial)](channel, affine=flag())
        w = nn.Parameter(rand(1))

        class Normed(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.norm, self.w = norm.double(), w

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                y: torch.Tensor = self.norm(x * self.w).relu()
                return y

        return Normed(), [rand(size(2, 6), channel, *spatial) * 2 + 3], None

    def lstm_cell(self, size: Draw, flag: Draw) -> Any:
        sample, features, hidden, bias = size(1, 4), size(1, 4), size(1, 6), flag()
        weights = [rand(4 * hidden, features), rand(4 * hidden, hidden)]
        weights += [rand(4 * hidden), rand(4 * hidden)] if bias else []

        def cell(x: torch.Tensor, h: torch.Tensor, c: torch.Tensor, *w: torch.Tensor) -> torch.Tensor:
            out, state = torch.ops.aten.lstm_cell(x, [h, c], *w)
            y: torch.Tensor = out * 2 + state * state
            return y

        return cell, [rand(sample, features), rand(sample, hidden), rand(sample, hidden)], weights

    def softmax(self, size: Draw, flag: Draw) -> Any:
        shape = [size(1, 5) for _ in range(size(1, 3))]
        axis, log = size(0, len(shape) - 1), flag()
        function = F.log_softmax if log else F.softmax
        return lambda x, w: function(x * w, axis), [rand(*shape)], [rand(1)]

    def dropout(self, size: Draw, flag: Draw) -> Any:
        p = 1.0 if flag() else 0.4
        return lambda x, w: F.dropout(x * w, p), [rand(size(1, 5), size(1, 5))], [rand(1)]

    def sum(self, size: Draw, flag: Draw) -> Any:
        return self._reduction(torch.sum, size, flag)

    def mean(self, size: Draw, flag: Draw) -> Any:
        return self._reduction(torch.mean, size, flag)

    def _reduction(self, function: Any, size: Draw, flag: Draw) -> Any:
        shape = [size(1, 5) for _ in range(size(1, 3))]
        if flag():
            return lambda x, w: function(x * w), [rand(*shape)], [rand(1)]
        axes = sorted({size(-len(shape), len(shape) - 1) % len(shape) for _ in range(2)})
        keep = flag()
        return lambda x, w: function(x * w, axes, keepdim=keep), [rand(*shape)], [rand(1)]

    def cross_entropy_loss(self, size: Draw, flag: Draw) -> Any:
        sample, classes, spatial = size(1, 6), size(2, 5), [size(1, 3)] * size(0, 1)
        kwargs: dict[str, Any] = {"reduction": ["mean", "sum", "none"][size(0, 2)]}
        kwargs["label_smoothing"] = 0.1 if flag() else 0.0
        if flag():
            kwargs["weight"] = rand(classes).abs()
        target = torch.randint(0, classes, (sample, *spatial))
        if flag() and sample > 1:
            kwargs["ignore_index"] = 1
            target.view(-1)[0] = 0
        return lambda x, t, w: F.cross_entropy(x * w, t, **kwargs), [rand(sample, classes, *spatial), target], [rand(1)]

    def mse_loss(self, size: Draw, flag: Draw) -> Any:
        shape = [size(1, 5) for _ in range(size(1, 3))]
        reduction = ["mean", "sum", "none"][size(0, 2)]
        return lambda x, t, w: F.mse_loss(x * w, t, reduction=reduction), [rand(*shape), rand(*shape)], [rand(1)]

    def pointwise(self, size: Draw, flag: Draw) -> Any:
        a, b, c = size(1, 4), size(1, 4), size(1, 4)
        left = rand(a, 1 if flag() else b, c)
        right = [rand(b, c), rand(c), rand(a, b, 1), rand(1, b, c)][size(0, 3)]
        return lambda x, y, w: F.hardswish(x * w) * ((x > 0) & (y < 1)) - y / 3 + 1, [left, right], [rand(1)]

    def detach(self, size: Draw, flag: Draw) -> Any:
        return lambda x, w: (x * w).detach() * w, [rand(size(1, 5), size(1, 5))], [rand(1)]

    def _to_copy(self, size: Draw, flag: Draw) -> Any:
        return lambda x, w: (x * w).to(torch.float32).to(torch.float64), [rand(size(1, 5), size(1, 5))], [rand(1)]

    def view(self, size: Draw, flag: Draw) -> Any:
        a, b, c, d = size(1, 4), size(1, 4), size(1, 4), size(1, 3)
        source = [(a, b, c), (a * b, c, d), (a, b, c * d), (a * b * c,)][size(0, 3)]
        total = prod(source)
        options = [(total,), (source[0], total // source[0]), (*source, 1), (1, *source[:-1], source[-1])]
        options += [(a, b, total // (a * b))] if total % (a * b) == 0 else []
        options += [(total // (c * d), d, c)] if total % (c * d) == 0 else []
        target = options[size(0, len(options) - 1)]
        out = size(1, 3)
        return (
            lambda x, w, v: F.linear(F.linear(x[..., None], w).relu().view(*target, out), v),
            [rand(*source)],
            [rand(out, 1), rand(4, out)],
        )

    def permute(self, size: Draw, flag: Draw) -> Any:
        shape = [size(1, 4) for _ in range(3)]
        order = [(0, 2, 1), (2, 0, 1), (1, 2, 0)][size(0, 2)]
        return (
            lambda x, w: F.linear(x.permute(order).relu(), w).transpose(0, 2),
            [rand(*shape)],
            [rand(3, shape[order[2]])],
        )

    def cat(self, size: Draw, flag: Draw) -> Any:
        axis, shape = size(0, 2), [size(1, 4) for _ in range(3)]
        other = list(shape)
        other[axis] = size(1, 4)
        width = shape[2] + other[2] if axis == 2 else shape[2]
        return (
            lambda x, y, w: F.linear(torch.cat([x, y, x], axis)[..., :width], w),
            [rand(*shape), rand(*other)],
            [rand(3, width)],
        )

    def stack(self, size: Draw, flag: Draw) -> Any:
        a, b, axis = size(1, 4), size(1, 4), size(0, 2)
        return (
            lambda x, y, w: torch.stack([x * w, y, x - y], axis).sum(1),
            [rand(a, b), rand(a, b)],
            [rand(1)],
        )

    def slice(self, size: Draw, flag: Draw) -> Any:
        a, b, c = size(1, 4), size(2, 9), size(1, 4)
        lo, step, k = size(0, b - 2), size(1, 3), size(1, 4)
        return lambda x, w, v: (F.linear(x, w).relu()[:, lo::step] @ v) * 2, [rand(a, b, c)], [rand(k, c), rand(k, 2)]

    def select(self, size: Draw, flag: Draw) -> Any:
        a, b, c = size(1, 4), size(2, 5), size(1, 4)
        index, k = size(-b, b - 1), size(1, 4)
        return lambda x, w, v: F.linear(F.linear(x, w)[:, index], v), [rand(a, b, c)], [rand(k, c), rand(3, k)]

    def expand(self, size: Draw, flag: Draw) -> Any:
        a, b, c = size(1, 4), size(1, 4), size(1, 4)
        return (
            lambda x, w, v: F.linear((x * w).expand(b, a, c), v),
            [rand(a if flag() else 1, c)],
            [rand(1), rand(2, c)],
        )

    def addmm(self, size: Draw, flag: Draw) -> Any:
        m, k, n = (size(1, 6) for _ in range(3))
        added = [rand(n), rand(m, n), rand(1, n)][size(0, 2)]
        return lambda x, b, w: torch.addmm(b, x, w, beta=2, alpha=3), [rand(m, k)], [added, rand(k, n)]

    def baddbmm(self, size: Draw, flag: Draw) -> Any:
        b, m, k, n = (size(1, 5) for _ in range(4))
        added = [rand(b, m, n), rand(b, 1, n), rand(1, m, n)][size(0, 2)]
        return lambda x, a, w: torch.baddbmm(a, x, w, beta=0.5), [rand(b, m, k)], [added, rand(b, k, n)]

    def einsum(self, size: Draw, flag: Draw) -> Any:
        a, b, c, d = (size(1, 5) for _ in range(4))
        equation, left, right = [
            ("abc,cd->abd", (a, b, c), (c, d)),
            ("abc,abd->acd", (a, b, c), (a, b, d)),
            ("a...c,dc->d...a", (a, b, c), (d, c)),
            ("ab,cd->acbd", (a, b), (c, d)),
        ][size(0, 3)]
        return lambda x, w: torch.einsum(equation, x, w), [rand(*left)], [rand(*right)]

    def scaled_dot_product_attention(self, size: Draw, flag: Draw) -> Any:
        sample, head, length, d, dv = size(1, 3), size(1, 4), size(1, 6), size(1, 4), size(1, 4)
        key = size(1, 6)
        rep, causal = (2 if flag() else 1), flag()
        scale = 0.3 if flag() else None
        mask = None
        if not causal and flag():
            masks = [(length, key), (1, 1, length, key), (sample, 1, length, key), (sample, head * rep, length, key)]
            mask = rand(*masks[size(0, 3)])

        def attend(
            q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, w: torch.Tensor, *m: torch.Tensor
        ) -> torch.Tensor:
            given = m[0] if m else None
            return F.scaled_dot_product_attention(q * w, k, v, given, is_causal=causal, scale=scale, enable_gqa=rep > 1)

        inputs = [rand(sample, head * rep, length, d), rand(sample, head, key, d), rand(sample, head, key, dv)]
        return attend, inputs, [rand(1)] + ([mask] if mask is not None else [])

    def conv1d(self, size: Draw, flag: Draw) -> Any:
        groups, kernel, stride, padding = size(1, 3), size(1, 4), size(1, 3), size(0, 3)
        x = rand(size(1, 4), groups * size(1, 3), kernel + size(0, 6))
        weight = rand(groups * size(1, 3), x.shape[1] // groups, kernel)
        return lambda x, w: F.conv1d(x, w, None, stride, padding, 1, groups), [x], [weight]

    def conv3d(self, size: Draw, flag: Draw) -> Any:
        x, weight = rand(2, size(1, 3), 4, 3, 5), (size(1, 3), 2, 1, 3)
        return lambda x, w: F.conv3d(x, w, padding=(1, 0, 1)), [x], [rand(weight[0], x.shape[1], *weight[1:])]

    def conv_transpose1d(self, size: Draw, flag: Draw) -> Any:
        return self._transposed(1, size, flag)

    def conv_transpose2d(self, size: Draw, flag: Draw) -> Any:
        return self._transposed(2, size, flag)

    def conv_transpose3d(self, size: Draw, flag: Draw) -> Any:
        return self._transposed(3, size, flag)

    def _transposed(self, count: int, size: Draw, flag: Draw) -> Any:
        groups, stride, dilation = size(1, 2), size(1, 3), size(1, 2)
        kernel = [size(1, 3) for _ in range(count)]
        padding = size(0, min(dilation * (k - 1) for k in kernel) // 2)
        extra = size(0, max(stride, dilation) - 1)
        x = rand(size(1, 3), groups * size(1, 2), *[size(1, 5) for _ in kernel])
        weight = rand(x.shape[1], size(1, 2), *kernel)
        bias = [rand(weight.shape[1] * groups)] if flag() else [None]
        function = [F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d][count - 1]

        def transposed(x: torch.Tensor, w: torch.Tensor, *b: torch.Tensor) -> torch.Tensor:
            given = b[0] if b else None
            y: torch.Tensor = function(x, w, given, stride, padding, extra, groups, dilation)
            return y

        return transposed, [x], [weight, *(b for b in bias if b is not None)]

    def max_pool1d(self, size: Draw, flag: Draw) -> Any:
        kernel, stride = size(1, 4), size(1, 3)
        x = rand(size(1, 3), size(1, 3), kernel + size(0, 7))
        return lambda x, w: F.max_pool1d(x * w, kernel, stride, kernel // 2), [x], [rand(1)]

    def max_pool3d(self, size: Draw, flag: Draw) -> Any:
        stride = size(1, 2)
        return lambda x, w: F.max_pool3d(x * w, 2, stride), [rand(2, 2, 4, 5, 4)], [rand(1)]

    def avg_pool1d(self, size: Draw, flag: Draw) -> Any:
        kernel, stride, include = size(1, 4), size(1, 3), flag()
        x = rand(size(1, 3), size(1, 3), kernel + size(0, 7))
        return lambda x, w: F.avg_pool1d(x * w, kernel, stride, kernel // 2, False, include), [x], [rand(1)]

    def adaptive_avg_pool1d(self, size: Draw, flag: Draw) -> Any:
        out = size(1, 5)
        return lambda x, w: F.adaptive_avg_pool1d(x * w, out), [rand(2, size(1, 3), size(1, 9))], [rand(1)]

    def adaptive_avg_pool2d(self, size: Draw, flag: Draw) -> Any:
        out = (size(1, 5), size(1, 4))
        return lambda x, w: F.adaptive_avg_pool2d(x * w, out), [rand(2, 3, size(1, 9), size(1, 7))], [rand(1)]

    def adaptive_max_pool1d(self, size: Draw, flag: Draw) -> Any:
        out = size(1, 5)
        return lambda x, w: F.adaptive_max_pool1d(x * w, out), [rand(2, size(1, 3), size(1, 9))], [rand(1)]

    def adaptive_max_pool2d(self, size: Draw, flag: Draw) -> Any:
        out = (size(1, 5), size(1, 4))
        return lambda x, w: F.adaptive_max_pool2d(x * w, out), [rand(2, 3, size(1, 9), size(1, 7))], [rand(1)]

    def gru_cell(self, size: Draw, flag: Draw) -> Any:
        return self._cell(torch.ops.aten.gru_cell, 3, size, flag)

    def rnn_tanh_cell(self, size: Draw, flag: Draw) -> Any:
        return self._cell(torch.ops.aten.rnn_tanh_cell, 1, size, flag)

    def rnn_relu_cell(self, size: Draw, flag: Draw) -> Any:
        return self._cell(torch.ops.aten.rnn_relu_cell, 1, size, flag)

    def _cell(self, cell: Any, gates: int, size: Draw, flag: Draw) -> Any:
        sample, features, hidden, bias = size(1, 4), size(1, 4), size(1, 6), flag()
        weights = [rand(gates * hidden, features), rand(gates * hidden, hidden)]
        weights += [rand(gates * hidden), rand(gates * hidden)] if bias else []
        return cell, [rand(sample, features), rand(sample, hidden)], weights

    def layer_norm(self, size: Draw, flag: Draw) -> Any:
        shape = [size(1, 5) for _ in range(size(1, 3))]
        inner = shape[-size(1, len(shape)) :]
        affine = [rand(*inner), rand(*inner)] if flag() else [rand(*inner)]
        return lambda x, *w: F.layer_norm(x, inner, *w), [rand(*shape)], affine

    def rms_norm(self, size: Draw, flag: Draw) -> Any:
        shape = [size(1, 5) for _ in range(3)]
        return lambda x, w: F.rms_norm(x, shape[-1:], w, 1e-6), [rand(*shape)], [rand(shape[-1])]

    def group_norm(self, size: Draw, flag: Draw) -> Any:
        groups, spatial = size(1, 3), [size(1, 4) for _ in range(size(0, 2))]
        channels = groups * size(1, 3)
        x = rand(size(2, 4), channels, *spatial)
        if channels // groups * prod(spatial) == 1:
            x = rand(2, channels, 2)
        return lambda x, *w: F.group_norm(x, groups, *w), [x], [rand(channels), rand(channels)]

    def amax(self, size: Draw, flag: Draw) -> Any:
        keep, axis = flag(), size(-3, 2)
        return lambda x, w: torch.amax(x * w, axis, keepdim=keep), [rand(2, 3, 4)], [rand(1)]

    def argmax(self, size: Draw, flag: Draw) -> Any:
        axis = size(0, 2)
        return lambda x, w: (x * w).argmax(axis).double() * w, [rand(2, 3, 4)], [rand(1)]

    def max(self, size: Draw, flag: Draw) -> Any:
        axis = size(0, 2)
        return lambda x, w: torch.max(x * w, axis)[0], [rand(2, 3, 4)], [rand(1)]

    def var(self, size: Draw, flag: Draw) -> Any:
        axis, keep = size(0, 2), flag()
        return lambda x, w: torch.var(x * w, axis, keepdim=keep), [rand(2, 3, 4)], [rand(1)]

    def cumsum(self, size: Draw, flag: Draw) -> Any:
        axis = size(-3, 2)
        return lambda x, w: torch.cumsum(x * w, axis), [rand(2, 3, 4)], [rand(1)]

    def flip(self, size: Draw, flag: Draw) -> Any:
        axes = [[0], [1, 2], [-1]][size(0, 2)]
        return lambda x, w: torch.flip(x * w, axes), [rand(2, 3, 4)], [rand(1)]

    def split(self, size: Draw, flag: Draw) -> Any:
        b, kind = size(2, 6), size(0, 3)

        def split(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
            y: Any = F.linear(x, w)
            pieces: Any = [y.chunk(2, 1), y.split(2, 1), y.split([1, b - 1], 1), y.unbind(1)][kind]
            z: torch.Tensor = pieces[0].relu() * 2 + pieces[-1].sum() if kind != 3 else pieces[0] * pieces[1]
            return z

        return split, [rand(3, b, 4)], [rand(5, 4)]

    def roll(self, size: Draw, flag: Draw) -> Any:
        shift, axis = size(-4, 4), size(0, 2)
        return lambda x, w: torch.roll(x * w, shift, axis) * 2, [rand(2, 3, 4)], [rand(1)]

    def repeat(self, size: Draw, flag: Draw) -> Any:
        times = [size(1, 3) for _ in range(3)]
        return lambda x, w, v: F.linear((x * w).repeat(times), v), [rand(3, 2)], [rand(1), rand(3, 2 * times[2])]

    def repeat_interleave(self, size: Draw, flag: Draw) -> Any:
        times, axis = size(1, 3), size(0, 1)
        width = 4 * (times if axis == 1 else 1)
        return lambda x, w: F.linear(x.repeat_interleave(times, axis), w), [rand(3, 4)], [rand(2, width)]

    def constant_pad_nd(self, size: Draw, flag: Draw) -> Any:
        pads = [size(0, 2) for _ in range(2 * size(1, 2))]
        return lambda x, w: F.pad(x * w, pads, value=1.5) * 2, [rand(3, 4, 3)], [rand(1)]

    def upsample_nearest1d(self, size: Draw, flag: Draw) -> Any:
        out = size(1, 9)
        return lambda x, w: F.interpolate(x * w, size=out), [rand(2, 3, size(1, 6))], [rand(1)]

    def upsample_nearest2d(self, size: Draw, flag: Draw) -> Any:
        return lambda x, w: F.interpolate(x * w, scale_factor=2), [rand(2, 3, size(1, 5), size(1, 4))], [rand(1)]

    def upsample_linear1d(self, size: Draw, flag: Draw) -> Any:
        return smooth("linear", 1, size, flag)

    def upsample_bilinear2d(self, size: Draw, flag: Draw) -> Any:
        return smooth("bilinear", 2, size, flag)

    def upsample_bicubic2d(self, size: Draw, flag: Draw) -> Any:
        return smooth("bicubic", 2, size, flag)

    def upsample_trilinear3d(self, size: Draw, flag: Draw) -> Any:
        return smooth("trilinear", 3, size, flag)

    def index(self, size: Draw, flag: Draw) -> Any:
        picked = torch.randint(0, 3, (size(1, 4),) if flag() else (2, size(1, 3)))
        if flag():
            others = torch.randint(0, 2, picked.shape if flag() else (1,))
            return lambda x, w: (x * w)[:, picked, others], [rand(4, 3, 2, 3)], [rand(1)]
        return lambda x, w: (x * w)[:, picked], [rand(4, 3, 2)], [rand(1)]

    def nll_loss(self, size: Draw, flag: Draw) -> Any:
        sample, classes, spatial = size(1, 6), size(2, 5), [size(1, 3)] * size(0, 1)
        target = torch.randint(0, classes, (sample, *spatial))
        likelihoods = (lambda y: F.log_softmax(y, 1)) if flag() else torch.neg
        weight = rand(classes) if flag() else None
        return (
            lambda x, t, w: F.nll_loss(likelihoods(x * w), t, weight),
            [rand(sample, classes, *spatial), target],
            [rand(1)],
        )

    def l1_loss(self, size: Draw, flag: Draw) -> Any:
        loss: Any = [F.l1_loss, F.smooth_l1_loss, F.huber_loss][size(0, 2)]
        shape = [size(1, 5) for _ in range(2)]
        reduction = ["mean", "sum", "none"][size(0, 2)]
        return lambda x, t, w: loss(x * w, t, reduction=reduction), [rand(*shape), rand(*shape)], [rand(1)]

    def binary_cross_entropy(self, size: Draw, flag: Draw) -> Any:
        shape, logits, weighted = [size(1, 5) for _ in range(2)], flag(), flag()
        weight = rand(*shape).abs() if weighted else None

        def loss(x: torch.Tensor, t: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
            if logits:
                return F.binary_cross_entropy_with_logits(x * w, t, weight)
            return F.binary_cross_entropy(torch.sigmoid(x * w), t, weight)

        return loss, [rand(*shape), rand(*shape).sigmoid()], [rand(1)]

    def kl_div(self, size: Draw, flag: Draw) -> Any:
        shape, log = [size(1, 5) for _ in range(2)], flag()
        reduction = ["none", "sum", "batchmean"][size(0, 2)]
        target = rand(*shape).softmax(1)

        def loss(x: torch.Tensor, t: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
            return F.kl_div(F.log_softmax(x * w, 1), t.log() if log else t, reduction=reduction, log_target=log)

        return loss, [rand(*shape), target], [rand(1)]

    def lstm_chunk(self, size: Draw, flag: Draw) -> Any:
        return self._recurrent(nn.LSTM, size, flag)

    def gru_chunk(self, size: Draw, flag: Draw) -> Any:
        return self._recurrent(nn.GRU, size, flag)

    def rnn(self, size: Draw, flag: Draw) -> Any:
        return self._recurrent(nn.RNN, size, flag)

    def causal_fill(self, size: Draw, flag: Draw) -> Any:
        shape = (size(1, 2), size(1, 3), size(1, 5), size(1, 3))

        def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
            return F.scaled_dot_product_attention(q * w, k, v, dropout_p=0.3, is_causal=True)

        return attend, [rand(*shape), rand(*shape), rand(*shape)], [rand(1)]

    def embedding_bag(self, size: Draw, flag: Draw) -> Any:
        bags, count, mode = size(1, 4), size(1, 3), "sum" if flag() else "mean"
        ids = torch.randint(0, 5, (bags, count))
        return lambda i, w: F.embedding_bag(i, w, mode=mode), [ids], [rand(5, 3)]

    def _recurrent(self, kind: Any, size: Draw, flag: Draw) -> Any:
        net = kind(3, size(1, 4), size(1, 2), bias=flag(), batch_first=flag(), bidirectional=flag()).double()

        class Net(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.net = net

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                y: torch.Tensor = self.net(x)[0]
                return y

        return Net(), [rand(4, 3, 3)], None

    def gather(self, size: Draw, flag: Draw) -> Any:
        a, b, c, picked = size(1, 4), size(1, 4), size(1, 4), size(1, 5)
        axis = size(0, 2)
        shape = [picked if i == axis else n for i, n in enumerate((a, b, c))]
        index = torch.randint(0, (a, b, c)[axis], shape)
        return lambda x, i, w: torch.gather(x * w, axis, i), [rand(a, b, c), index], [rand(1)]

    def index_select(self, size: Draw, flag: Draw) -> Any:
        shape, axis = [size(1, 4) for _ in range(3)], size(0, 2)
        rows = torch.randint(0, shape[axis], (size(1, 5),))
        return lambda x, i, w: torch.index_select(x * w, axis, i), [rand(*shape), rows], [rand(1)]

    def index_add(self, size: Draw, flag: Draw) -> Any:
        shape, axis, count = [size(1, 4) for _ in range(3)], size(0, 2), size(1, 5)
        rows = torch.randint(0, shape[axis], (count,))
        given = [count if i == axis else n for i, n in enumerate(shape)]
        return lambda x, i, y, w: torch.index_add(x * w, axis, i, y * w), [rand(*shape), rows, rand(*given)], [rand(1)]

    def scatter(self, size: Draw, flag: Draw) -> Any:
        shape, axis = [size(1, 4) for _ in range(3)], size(0, 2)
        given = [size(1, shape[axis]) if i == axis else n for i, n in enumerate(shape)]
        index = torch.rand(given).argsort(axis)  # no place twice, so that the order does not matter
        act = torch.scatter if flag() else torch.scatter_add
        return lambda x, i, y, w: act(x * w, axis, i, y * w), [rand(*shape), index, rand(*given)], [rand(1)]

    def one_hot(self, size: Draw, flag: Draw) -> Any:
        index, classes = torch.randint(0, 4, (size(1, 4), size(1, 4))), size(4, 6)
        return lambda i, w: F.one_hot(i, classes) * w, [index], [rand(1)]

    def topk(self, size: Draw, flag: Draw) -> Any:
        shape, axis, largest = [size(1, 4) for _ in range(3)], size(0, 2), flag()
        count = size(1, shape[axis])

        def pick(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
            values, places = torch.topk(x * w, count, axis, largest)
            return values + places

        return pick, [rand(*shape)], [rand(1)]

    def routed_mm(self, size: Draw, flag: Draw) -> Any:
        """Rows in the order of their experts, which some have none of, and back."""
        assert moe.ALL_EXPERTS_FUNCTIONS  # it has a product by groups for float64, too
        experts, tokens, times = size(1, 4), size(1, 6), size(1, 2)
        chosen = torch.randint(0, experts, (tokens * times,))

        def route(x: torch.Tensor, chosen: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
            found, order = torch.sort(chosen)
            ends = torch.cumsum(torch.histc(found.double(), experts, 0, experts - 1), 0, dtype=torch.int32)
            made = torch.ops.transformers.grouped_mm_fallback(x[order // times], w, ends)
            places = torch.empty_like(order)
            places[order] = torch.arange(len(order))
            rows: torch.Tensor = made[places]
            return rows

        return route, [rand(tokens, 3), chosen], [rand(experts, 3, size(1, 4))]

    def where(self, size: Draw, flag: Draw) -> Any:
        shape = size(1, 5), size(1, 5)
        other = 2.0 if flag() else rand(1, shape[1])
        return lambda x, w: torch.where(x > 0, x * w, other), [rand(*shape)], [rand(1)]

    def fill(self, size: Draw, flag: Draw) -> Any:
        x = rand(size(1, 5), size(1, 5))
        value = 3.0 if flag() else torch.tensor(2.0, dtype=torch.float64)
        return lambda x, w: torch.fill(x * w, value) * w, [x], [rand(1)]

    def pixel_shuffle(self, size: Draw, flag: Draw) -> Any:
        factor = size(1, 3)
        x = rand(size(1, 3), size(1, 3) * factor**2, size(1, 4), size(1, 4))
        return lambda x, w: F.pixel_shuffle(x * w, factor), [x], [rand(1)]

    def glu(self, size: Draw, flag: Draw) -> Any:
        shape = [size(1, 3), size(1, 3), size(1, 3)]
        axis = size(0, 2)
        shape[axis] *= 2
        return lambda x, w: F.glu(x * w, axis), [rand(*shape)], [rand(1)]

    def slice_scatter(self, size: Draw, flag: Draw) -> Any:
        a, b = size(2, 6), size(1, 5)
        start = size(0, a - 1)
        end = size(start + 1, a)
        source = rand(end - start, b) if flag() else rand(b)

        def scatter(x: torch.Tensor, y: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
            if y.ndim == 1:
                return torch.select_scatter(x * w, y * w, 0, start)
            return torch.slice_scatter(x * w, y * w, 0, start, end)  # which may be all of it

        return scatter, [rand(a, b), source], [rand(1)]

    def frozen_batch_norm(self, size: Draw, flag: Draw) -> Any:
        channels, spatial = size(1, 5), [size(1, 4) for _ in range(size(0, 2))]
        mean, var, x = rand(channels), rand(channels).exp(), rand(size(1, 5), channels, *spatial)
        affine = [rand(channels), rand(channels)] if flag() else [rand(1)]

        def norm(x: torch.Tensor, *w: torch.Tensor) -> torch.Tensor:
            return F.batch_norm(x, mean, var, *w) if len(w) == 2 else F.batch_norm(x, mean, var) * w[0]

        return norm, [x], affine

    def unruled(self, size: Draw, flag: Draw) -> Any:
        a, b = size(2, 4), size(1, 4)
        return lambda x, w: torch.logcumsumexp(x * w, 0) * 2, [rand(a, b)], [rand(1)]


HELPERS = ("_reduction", "_transposed", "_cell", "_recurrent")
NAMES = [name for name in dir(Cases) if not name.startswith("__") and name not in HELPERS]
SAME = {
    "permute": "transpose t",
    "softmax": "_softmax _safe_softmax log_softmax _log_softmax",
    "dropout": "native_dropout",
    "frozen_batch_norm": "_native_batch_norm_legit_no_training",
    "amax": "amin any all",
    "argmax": "argmin",
    "var": "std prod logsumexp linalg_vector_norm norm",
    "cumsum": "cumprod argsort",
    "scatter": "scatter_add",
    "max": "sort min median",
    "nll_loss": "nll_loss_nd nll_loss2d",
    "cross_entropy_loss": "class_loss class_mean",
    "l1_loss": "smooth_l1_loss huber_loss",
    "binary_cross_entropy": "binary_cross_entropy_with_logits",
}
ELSEWHERE = {"local_batch_norm"}  # its parts differ from the whole on purpose: tests/runtime/test_runtime.py
CASE_OF = {kind: case for case, kinds in SAME.items() for kind in kinds.split()}


def test_every_rule_has_a_case() -> None:
    lines = {kind for kind, rule in RULES.items() if rule.line is not POINTWISE.line}
    assert {CASE_OF.get(kind, kind) for kind in lines} - ELSEWHERE <= set(NAMES)


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=2, phases=[Phase.explicit, Phase.generate])  # shrinking a traced model takes minutes
@given(data=st.data())
def test_a_rule_in_parts_equals_the_whole(name: str, data: st.DataObject) -> None:
    torch.manual_seed(data.draw(st.integers(0, 2**16), "seed"))

    def size(lo: int, hi: int) -> int:
        return data.draw(st.integers(lo, hi))

    def flag() -> bool:
        return data.draw(st.booleans())

    function, inputs, parameters = getattr(Cases(), name)(size, flag)
    model = function if parameters is None else Function(function, *parameters)
    work = Workload(model, inputs, loss=loss_of)
    dims = [0 if x.ndim else None for x in work.batch]  # whatever their sizes: some ops pick rows
    graph = capture(work, chunk=2 if "chunk" in name else 1, batch_dim=dims)
    assert bool(graph.unruled) == (name == "unruled"), graph.unruled
    for _ in range(3):
        check_ops(graph, work, lambda lo, hi: data.draw(st.integers(lo, hi), "degree"))


def test_the_binder_names_line_and_shape() -> None:
    with pytest.raises(GraphError, match=r"rule 'a b -> a b' does not fit the shape \[3\]"):
        bind("a b -> a b", [(3,)], [(3,)])
    with pytest.raises(GraphError, match="has no '->'"):
        bind("a b", [(3, 4)], [(3, 4)])
    with pytest.raises(GraphError, match="closing parenthesis"):
        bind("(a b -> a b", [(12,)], [(3, 4)])


def test_a_broken_rule_is_caught() -> None:
    """A convolution whose halo is one row short must not pass."""
    rule = RULES["conv2d"]
    work = Workload(
        Function(lambda x, w: F.conv2d(x, w, padding=1), rand(2, 2, 3, 3)), (rand(2, 2, 6, 6),), loss=loss_of
    )

    def short(call: Any) -> dict[str, Map]:
        return {**rule.maps(call), "height": Map((1, -1, 1), (1, 0, 1))}

    broken = type(rule)(**{**vars(rule), "maps": short})
    RULES["conv2d"] = broken
    try:
        graph = capture(work)
    finally:
        RULES["conv2d"] = rule
    with pytest.raises((AssertionError, RuntimeError)):
        check_ops(graph, work, lambda lo, hi: min(2, hi))


@pytest.mark.parametrize("loss", [F.cross_entropy, F.nll_loss, torch.ops.aten.nll_loss.default])
def test_a_loss_by_class_says_what_its_targets_may_be(loss: Callable[..., torch.Tensor]) -> None:
    model = Function(lambda x, t, w: loss(x * w, t), rand(1))
    graph = capture(Workload(model, (rand(4, 3), torch.tensor([0, 1, 2, 0])), loss=loss_of))
    assert [found.end for op in graph.ops for _, found in ranges(op)] == [3]
