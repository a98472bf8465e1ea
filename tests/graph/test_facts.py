"""A graph's facts: flops against counts by hand, saved bytes against what eager PyTorch keeps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import soapstone as ss
from soapstone.graph.facts import op_bytes
from soapstone.parts import routed_mm
from soapstone.rules import facts_of
from tests.support.counting import saved_by_eager
from tests.support.split import Function, rand
from tests.zoo import test_zoo


class ByHand(NamedTuple):
    """One op, with its flops and the elements that it reads and writes as one would write them on paper: two flops for
    each multiply-add, one for each element of anything cheap behind."""

    function: Callable[..., Any]
    inputs: list[torch.Tensor]
    weights: list[torch.Tensor]
    kind: str
    flops: int
    elements: int


def zeros(*shape: int) -> torch.Tensor:
    return torch.zeros(*shape, dtype=torch.int64)


BY_HAND = {
    "linear": ByHand(
        F.linear, [rand(5, 7)], [rand(3, 7), rand(3)], "linear", 2 * 5 * 7 * 3, 5 * 7 + 3 * 7 + 3 + 5 * 3
    ),
    "linear and relu": ByHand(
        lambda x, w: F.linear(x, w).relu(), [rand(5, 7)], [rand(3, 7)], "linear",
        2 * 5 * 7 * 3 + 15, 5 * 7 + 3 * 7 + 15,
    ),
    "bmm": ByHand(torch.bmm, [rand(4, 5, 7)], [rand(4, 7, 3)], "bmm", 2 * 4 * 5 * 7 * 3, 4 * (5 * 7 + 7 * 3 + 5 * 3)),
    "einsum": ByHand(
        lambda x, w: torch.einsum("bij,jk->bik", x, w), [rand(2, 5, 7)], [rand(7, 3)], "einsum",
        2 * 2 * 5 * 7 * 3, 2 * 5 * 7 + 7 * 3 + 2 * 5 * 3,
    ),
    "experts": ByHand(
        lambda x, e, w: routed_mm(x, w, e), [rand(5, 7), zeros(5)], [rand(4, 7, 3)], "experts",
        2 * 5 * 7 * 3, 5 * 7 + 5 + 4 * 7 * 3 + 5 * 3,
    ),
    "convolution": ByHand(
        lambda x, w: F.conv2d(x, w, stride=2, padding=1, groups=2), [rand(3, 4, 8, 8)], [rand(6, 2, 3, 3)], "conv2d",
        2 * 3 * 6 * 4 * 4 * 2 * 3 * 3, 3 * 4 * 8 * 8 + 6 * 2 * 3 * 3 + 3 * 6 * 4 * 4,
    ),
    "transposed convolution": ByHand(
        lambda x, w: F.conv_transpose2d(x, w, stride=2), [rand(3, 4, 5, 5)], [rand(4, 6, 2, 2)], "conv_transpose2d",
        2 * 3 * 4 * 5 * 5 * 6 * 2 * 2, 3 * 4 * 5 * 5 + 4 * 6 * 2 * 2 + 3 * 6 * 10 * 10,
    ),
    "pool": ByHand(
        lambda x, w: F.max_pool2d(x * w, 3, 2), [rand(2, 3, 9, 9)], [rand(1)], "max_pool2d",
        2 * 3 * 4 * 4 * 9, 2 * 3 * (9 * 9 + 4 * 4),
    ),
    "global pool": ByHand(
        lambda x, w: F.adaptive_avg_pool2d(x * w, 1), [rand(2, 3, 9, 9)], [rand(1)], "adaptive_avg_pool2d",
        2 * 3 * 81, 2 * 3 * (9 * 9 + 1),
    ),
    "lstm cell": ByHand(
        lambda x, *w: torch.lstm_cell(x, (x.new_zeros(4, 8), x.new_zeros(4, 8)), *w)[0],
        [rand(4, 6)], [rand(32, 6), rand(32, 8), rand(32), rand(32)], "lstm_cell",
        2 * 4 * 32 * (6 + 8), 4 * 6 + 32 * (6 + 8 + 2) + 4 * 8 + 4 * 8,
    ),
    "attention": ByHand(
        lambda q, w: F.scaled_dot_product_attention(q * w, q, q), [rand(2, 3, 5, 4)], [rand(1)], "attention",
        2 * 2 * 3 * 5 * 5 * (4 + 4), 3 * 2 * 3 * 5 * 4,
    ),
    "layer norm": ByHand(
        lambda x, w: F.layer_norm(x, (6,), w), [rand(4, 6)], [rand(6)], "layer_norm", 8 * 24, 24 + 6 + 24
    ),
    "batch norm": ByHand(
        lambda x, w: F.batch_norm(x, None, None, w, training=True), [rand(4, 3, 5)], [rand(3)], "batch_norm",
        8 * 60, 60 + 3 + 60,
    ),
    "embedding": ByHand(F.embedding, [zeros(4, 5)], [rand(9, 3)], "embedding", 4 * 5 * 3, 4 * 5 + 9 * 3 + 4 * 5 * 3),
    "look-up": ByHand(
        lambda x, i, w: x[i] * w, [rand(5, 3), zeros(5)], [rand(3)], "index", 2 * 5 * 3, 5 * 3 + 5 + 3 + 5 * 3
    ),
    "pointwise": ByHand(lambda x, w: x * w, [rand(5, 7)], [rand(7)], "mul", 35, 35 + 7 + 35),
    "reshaping": ByHand(
        lambda x, w: F.linear(x.t().reshape(7, 5).t(), w), [rand(5, 7)], [rand(3, 7)], "linear",
        2 * 105, 35 + 21 + 15,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BY_HAND)
def test_flops_and_bytes_are_those_counted_by_hand(name: str) -> None:
    case = BY_HAND[name]
    graph = ss.capture(Function(case.function, *case.weights), tuple(case.inputs), loss=torch.sum)
    (op,) = [op for op in graph.ops if op.kind == case.kind]
    assert (op.flops, op_bytes(op)) == (case.flops, 8 * case.elements)


def test_every_family_is_counted() -> None:
    kinds = {case.kind for case in BY_HAND.values()}
    assert {facts_of(kind).family for kind in kinds} >= {"dense", "conv", "cell", "pool", "norm", "table", "pointwise"}


def test_bytes_are_those_of_the_tensors() -> None:
    model = nn.Linear(7, 3)
    graph = ss.capture(model, (torch.randn(5, 7),), loss=lambda y: y.sum())
    facts = graph.facts
    assert (facts.parameters, facts.parameter_bytes) == (24, 96)
    assert facts.bytes == 4 * ((35 + 21 + 3 + 15) + (15 + 1))
    assert facts.saved_bytes == 4 * 35  # the layer's input; a sum keeps nothing
    assert facts.layers == 2


@pytest.mark.parametrize("name", test_zoo.SMALL)
def test_saved_bytes_are_what_eager_keeps(name: str) -> None:
    """Ours may be more: a concatenation is made anew for each of its readers. Models of `transformers` are held against
    eager PyTorch in tests/tracing/test_huggingface.py."""
    work = test_zoo.workload(name)
    ours, eager = ss.capture(work).facts.saved_bytes, saved_by_eager(work)
    assert 0.95 * eager <= ours <= 1.25 * eager


def test_the_summary_names_what_has_no_rule() -> None:
    model = Function(lambda x, w: torch.logcumsumexp(x @ w, 0), rand(6, 6))
    graph = ss.capture(model, (rand(4, 6),), loss=torch.sum)
    (share,) = graph.facts.unruled.values()
    assert share == pytest.approx(24 / sum(op.flops for op in graph.ops))
    assert f"logcumsumexp ({share:.1%} of the flops)" in str(graph)
