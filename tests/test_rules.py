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

from soapstone.errors import GraphError
from soapstone.graph import OperatorGraph
from soapstone.rules import RULES, Map, bind
from soapstone.runtime.store import constant
from soapstone.tracing import Workload, capture

from .split import run_parts

Draw = Callable[..., Any]


class Function(nn.Module):
    def __init__(self, function: Callable[..., torch.Tensor], *parameters: torch.Tensor) -> None:
        super().__init__()
        self.function = function
        self.weights = nn.ParameterList([nn.Parameter(p) for p in parameters])

    def forward(self, *inputs: torch.Tensor) -> Any:
        return self.function(*inputs, *self.weights)


def rand(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64)


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
        return lambda x, y, w: torch.relu(x * w) * 2 - y / 3 + 1, [left, right], [rand(1)]

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

    def unruled(self, size: Draw, flag: Draw) -> Any:
        a, b = size(2, 4), size(1, 4)
        return lambda x, w: torch.cumprod(x * w, 0) * 2, [rand(a, b)], [rand(1)]


NAMES = [name for name in dir(Cases) if not name.startswith("__") and name != "_reduction"]
SAME = {"_unsafe_view": "view", "reshape": "view", "flatten": "view", "unsqueeze": "view", "squeeze": "view",
        "transpose": "permute", "t": "permute", "_softmax": "softmax", "log_softmax": "softmax",
        "_log_softmax": "softmax", "native_dropout": "dropout", "to": "_to_copy"}  # fmt: skip


def test_every_rule_has_a_case() -> None:
    assert {SAME.get(kind, kind) for kind in RULES} <= set(NAMES)


def loss_of(output: torch.Tensor) -> torch.Tensor:
    weights = torch.linspace(-1, 2, max(output.numel(), 1), dtype=output.dtype)[: output.numel()].view(output.shape)
    return (output * weights).sum()


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=10, phases=[Phase.explicit, Phase.generate])  # shrinking a traced model takes minutes
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
    graph = capture(work)
    for _ in range(3):
        check_ops(graph, work, lambda lo, hi: data.draw(st.integers(lo, hi), "degree"))


def check_ops(graph: OperatorGraph, work: Workload, draw: Callable[[int, int], int]) -> None:
    """Run op after op, whole and in parts, and compare; the last must be the model's own loss."""
    state = dict(work.model.named_parameters()) | dict(work.model.named_buffers())
    values: dict[int, torch.Tensor] = {}
    batch = iter(graph.inputs)
    for x in (*work.inputs, *work.targets):
        values[next(batch)] = x
    for i, t in enumerate(graph.tensors):
        if t.source in ("parameter", "buffer"):
            values[i] = state[t.name].detach()
        elif t.source == "constant":
            values[i] = constant(t)
    for index, op in enumerate(graph.ops):
        inputs = [values[o.tensor] for o in op.inputs]
        degrees = [draw(1, min(d.size, 3)) if d.splittable else 1 for d in op.dims]
        whole, whole_grads, whole_updates = forward_backward(graph, index, [1] * len(degrees), inputs)
        split, split_grads, split_updates = forward_backward(graph, index, degrees, inputs)
        for a, b in zip(split + split_grads, whole + whole_grads, strict=True):
            close(a, b)
        assert split_updates.keys() == whole_updates.keys() == {o.tensor for o in op.updates}
        for tensor in whole_updates:
            close(split_updates[tensor], whole_updates[tensor])
        values.update({o.tensor: x for o, x in zip(op.outputs, whole)})
    if any("draw" in step.args for op in graph.ops for step in op.steps):
        return  # its own masks, not torch's
    close(values[graph.loss], work.compute_loss(*work.inputs, *work.targets).detach())


def forward_backward(graph: OperatorGraph, index: int, degrees: list[int], inputs: list[torch.Tensor]) -> Any:
    sources = [graph.tensors[o.tensor].source for o in graph.ops[index].inputs]
    leaves = [x.clone().requires_grad_(x.is_floating_point() and s != "constant") for x, s in zip(inputs, sources)]
    outputs, updates = run_parts(graph, index, degrees, leaves)
    total = sum((loss_of(y) for y in outputs if y.requires_grad), torch.zeros((), dtype=torch.float64))
    wanted = [x for x in leaves if x.requires_grad]
    grads = torch.autograd.grad(total, wanted, allow_unused=True) if total.requires_grad else [None] * len(wanted)
    filled = [torch.zeros_like(x) if g is None else g for g, x in zip(grads, wanted)]
    return [y.detach() for y in outputs], filled, updates


def close(a: torch.Tensor, b: torch.Tensor) -> None:
    assert a.shape == b.shape
    assert torch.isfinite(a).all()
    assert (a - b).abs().max().item() <= 1e-9 * max(b.abs().max().item(), 1e-3) if a.numel() else True


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
