"""Attention whose masks and repeated heads are recognised: computed like eager PyTorch's, on any strategy."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import soapstone as ss
from tests.support.models import seeded
from tests.support.seeds import cases
from tests.support.training import assert_same, train_plain, train_threads

T = torch.Tensor
SAMPLES, HEADS, SHARED, LENGTH, WIDTH = 4, 4, 2, 6, 3
EARLIER = torch.ones(LENGTH, LENGTH, dtype=torch.bool).tril()
LOWEST = torch.finfo(torch.float64).min


def additive(visible: T, hidden: float) -> T:
    return torch.zeros(visible.shape, dtype=torch.float64).masked_fill(~visible, hidden)


def from_positions() -> T:
    place = torch.arange(LENGTH)
    return (place[None, :] <= place[:, None])[None, None].expand(SAMPLES, 1, LENGTH, LENGTH)


MASKS: dict[str, tuple[Callable[[], T | None], str]] = {
    "none": (lambda: None, "all"),
    "causal": (lambda: EARLIER, "causal"),
    "causal, expanded": (from_positions, "causal"),
    "causal, added": (lambda: additive(EARLIER, LOWEST), "causal"),
    "causal, added, infinite": (lambda: additive(EARLIER, -torch.inf), "causal"),
    "a window that is too long": (lambda: EARLIER & EARLIER.T.tril(LENGTH).T, "causal"),
    "everything": (lambda: torch.ones(1, 1, 1, LENGTH, dtype=torch.bool), "all"),
    "everything, added": (lambda: torch.zeros(LENGTH, LENGTH, dtype=torch.float64), "all"),
    "a window": (lambda: EARLIER & ~EARLIER.tril(-2), "mask"),
    "slopes": (lambda: additive(EARLIER, -3.0), "mask"),
    "later places": (lambda: EARLIER.T, "mask"),
    "by sample": (lambda: from_positions() & (torch.arange(SAMPLES) > 0)[:, None, None, None] | EARLIER.T, "mask"),
}


class Attention(nn.Module):
    def __init__(self, mask: Callable[[], T | None], groups: int = 1, dropout: float = 0.0) -> None:
        super().__init__()
        self.mask, self.groups, self.dropout = mask, groups, dropout
        shared = HEADS // groups * WIDTH
        self.q = nn.Linear(WIDTH, HEADS * WIDTH, dtype=torch.float64)
        self.k, self.v = (nn.Linear(WIDTH, shared, dtype=torch.float64) for _ in range(2))

    def heads(self, x: T) -> T:
        return x.view(*x.shape[:-1], -1, WIDTH).transpose(1, 2)

    def repeated(self, x: T) -> T:
        """As transformers does it."""
        samples, heads, length, width = x.shape
        if self.groups == 1:
            return x
        wide = x[:, :, None, :, :].expand(samples, heads, self.groups, length, width)
        return wide.reshape(samples, heads * self.groups, length, width)

    def forward(self, x: T) -> T:
        k, v = (self.repeated(self.heads(layer(x))) for layer in (self.k, self.v))
        return F.scaled_dot_product_attention(self.heads(self.q(x)), k, v, self.mask(), self.dropout)


def work(mask: Callable[[], T | None], groups: int = 1, dropout: float = 0.0) -> ss.Workload:
    with seeded(2):
        x = torch.randn(SAMPLES, LENGTH, WIDTH, dtype=torch.float64)
        return ss.Workload(Attention(mask, groups, dropout), (x,), loss=lambda y: (y**2).mean())


def called(graph: ss.OperatorGraph) -> tuple[str, bool, tuple[int, ...]]:
    """What attention is told of a mask, whether heads share keys, and the shape of these."""
    ((op, step),) = [(op, s) for op in graph.ops for s in op.steps if s.kind == "scaled_dot_product_attention"]
    said = "mask" if len(step.inputs) > 3 else "causal" if step.args["is_causal"] else "all"
    return said, step.args["enable_gqa"], op.values[step.inputs[1]].shape


def trains_like_one_device(make: Callable[[], ss.Workload], graph: ss.OperatorGraph) -> None:
    wanted = train_plain(make(), [make().batch] * 2)
    for seed in range(2):
        strategy = ss.baselines.random(graph, ss.Topology.parse(f"cpu:1x{2 + seed}"), seed=seed)
        for record in train_threads(make, graph, strategy, [make().batch] * 2):
            assert_same(record, wanted)


@pytest.mark.parametrize("groups", [1, HEADS // SHARED])
@pytest.mark.parametrize("name", cases(MASKS, long={name for name in MASKS if "added" in name or "too long" in name}))
def test_a_mask_that_a_kernel_need_not_be_given_is_recognised(name: str, groups: int) -> None:
    mask, wanted = MASKS[name]
    graph = ss.capture(work(mask, groups))
    said, shares, keys = called(graph)
    assert said == wanted
    assert shares == (groups > 1 and said != "mask")
    assert keys == (SAMPLES, SHARED if shares else HEADS, LENGTH, WIDTH)
    trains_like_one_device(lambda: work(mask, groups), graph)


def repeated(x: T, groups: int) -> T:
    samples, heads, length, width = x.shape
    return x[:, :, None].expand(samples, heads, groups, length, width).reshape(samples, heads * groups, length, width)


def one_query_head(q: T) -> T:
    return F.scaled_dot_product_attention(q[:, :1], repeated(q[:, :2], 2), repeated(q[:, :2], 2))


def three_axes(q: T) -> T:
    wide = q[0, :2, None].expand(2, 2, LENGTH, WIDTH).reshape(HEADS, LENGTH, WIDTH)
    return F.scaled_dot_product_attention(q[0], wide, wide)


def another_shape(q: T) -> T:
    wide = q[:, :2, :, None].expand(SAMPLES, 2, LENGTH, 2, WIDTH).transpose(2, 3)
    wide = wide.reshape(SAMPLES, HEADS, LENGTH * WIDTH // 2, 2)
    return F.scaled_dot_product_attention(q[..., :2], wide, wide)


def negative_scale(q: T) -> T:
    return F.scaled_dot_product_attention(q, q, q, EARLIER, scale=-1.0)


@pytest.mark.parametrize("function", [one_query_head, three_axes, another_shape, negative_scale])
def test_what_looks_alike_stays_as_it_is(function: Callable[[T], T]) -> None:
    class Model(nn.Linear):
        def forward(self, x: T) -> T:
            return function(super().forward(x))

    def make() -> ss.Workload:
        with seeded(2):
            x = torch.randn(SAMPLES, HEADS, LENGTH, WIDTH, dtype=torch.float64)
            return ss.Workload(Model(WIDTH, WIDTH, dtype=torch.float64), (x,), loss=lambda y: (y**2).mean())

    trains_like_one_device(make, ss.capture(make()))


@pytest.mark.parametrize("name", ["causal, expanded", "everything", "a window"])
def test_dropout_falls_on_the_same_weights(name: str) -> None:
    mask, _ = MASKS[name]
    trains_like_one_device(lambda: work(mask, 2, 0.5), ss.capture(work(mask, 2, 0.5)))


def test_a_mask_that_depends_on_the_inputs_stays() -> None:

    class Padded(nn.Linear):
        def forward(self, x: T, kept: T) -> T:  # type: ignore[override]
            q = super().forward(x)
            return F.scaled_dot_product_attention(q, q, q, kept[:, None, None, :] & EARLIER)

    x, kept = torch.randn(SAMPLES, HEADS, LENGTH, WIDTH), torch.ones(SAMPLES, LENGTH, dtype=torch.bool)
    assert called(ss.capture(Padded(WIDTH, WIDTH), (x, kept), loss=torch.sum))[0] == "mask"


@pytest.mark.parametrize("precision", ["", "autocast", "mixed"])
def test_heads_are_shared_in_any_type(precision: str) -> None:
    """So that a strategy fits the same model in another type. Kernels for 4 bytes repeat them."""
    make = work(lambda: None, 2).to("float32")
    assert called(ss.capture(make, precision=precision)) == ("all", True, (SAMPLES, SHARED, LENGTH, WIDTH))
