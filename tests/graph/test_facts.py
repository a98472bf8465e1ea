"""A graph's facts: flops against counts by hand, saved bytes against what eager PyTorch keeps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import soapstone as ss
from tests.support import huggingface
from tests.support.counting import saved_by_eager
from tests.support.split import Function, rand
from tests.tracing import test_huggingface
from tests.zoo import test_zoo


def flops(function: Callable[..., Any], inputs: list[torch.Tensor], weights: list[torch.Tensor], kind: str) -> int:
    graph = ss.capture(Function(function, *weights), tuple(inputs), loss=torch.sum)
    (op,) = [op for op in graph.ops if op.kind == kind]
    return op.flops


# Written out as one would on paper: two for each multiply-add, one for each element of anything cheap behind.
BY_HAND: dict[str, tuple[Callable[..., Any], list[torch.Tensor], list[torch.Tensor], str, int]] = {
    "linear": (F.linear, [rand(5, 7)], [rand(3, 7), rand(3)], "linear", 2 * 5 * 7 * 3),
    "linear and relu": (lambda x, w: F.linear(x, w).relu(), [rand(5, 7)], [rand(3, 7)], "linear", 2 * 5 * 7 * 3 + 15),
    "bmm": (torch.bmm, [rand(4, 5, 7)], [rand(4, 7, 3)], "bmm", 2 * 4 * 5 * 7 * 3),
    "einsum": (
        lambda x, w: torch.einsum("bij,jk->bik", x, w),
        [rand(2, 5, 7)],
        [rand(7, 3)],
        "einsum",
        2 * 2 * 5 * 7 * 3,
    ),
    "convolution": (
        lambda x, w: F.conv2d(x, w, stride=2, padding=1, groups=2),
        [rand(3, 4, 8, 8)],
        [rand(6, 2, 3, 3)],
        "conv2d",
        2 * 3 * 6 * 4 * 4 * 2 * 3 * 3,
    ),
    "transposed convolution": (
        lambda x, w: F.conv_transpose2d(x, w, stride=2),
        [rand(3, 4, 5, 5)],
        [rand(4, 6, 2, 2)],
        "conv_transpose2d",
        2 * 3 * 4 * 5 * 5 * 6 * 2 * 2,
    ),
    "pool": (lambda x, w: F.max_pool2d(x * w, 3, 2), [rand(2, 3, 9, 9)], [rand(1)], "max_pool2d", 2 * 3 * 4 * 4 * 9),
    "global pool": (
        lambda x, w: F.adaptive_avg_pool2d(x * w, 1),
        [rand(2, 3, 9, 9)],
        [rand(1)],
        "adaptive_avg_pool2d",
        2 * 3 * 81,
    ),
    "lstm cell": (
        lambda x, *w: torch.lstm_cell(x, (x.new_zeros(4, 8), x.new_zeros(4, 8)), *w)[0],
        [rand(4, 6)],
        [rand(32, 6), rand(32, 8), rand(32), rand(32)],
        "lstm_cell",
        2 * 4 * 32 * (6 + 8),
    ),
    "attention": (
        lambda q, w: F.scaled_dot_product_attention(q * w, q, q),
        [rand(2, 3, 5, 4)],
        [rand(1)],
        "attention",
        2 * 2 * 3 * 5 * 5 * (4 + 4),
    ),
    "layer norm": (lambda x, w: F.layer_norm(x, (6,), w), [rand(4, 6)], [rand(6)], "layer_norm", 8 * 4 * 6),
    "embedding": (
        lambda i, w: F.embedding(i, w),
        [torch.zeros(4, 5, dtype=torch.int64)],
        [rand(9, 3)],
        "embedding",
        4 * 5 * 3,
    ),
    "reshaping": (lambda x, w: F.linear(x.t().reshape(7, 5).t(), w), [rand(5, 7)], [rand(3, 7)], "linear", 2 * 105),
}


@pytest.mark.parametrize("name", BY_HAND)
def test_flops_are_those_counted_by_hand(name: str) -> None:
    function, inputs, weights, kind, wanted = BY_HAND[name]
    assert flops(function, inputs, weights, kind) == wanted


def test_bytes_are_those_of_the_tensors() -> None:
    model = nn.Linear(7, 3)
    graph = ss.capture(model, (torch.randn(5, 7),), loss=lambda y: y.sum())
    facts = graph.facts
    assert (facts.parameters, facts.parameter_bytes) == (24, 96)
    assert facts.bytes == 4 * ((35 + 21 + 3 + 15) + (15 + 1))
    assert facts.saved_bytes == 4 * 35  # the layer's input; a sum keeps nothing
    assert facts.layers == 2


MODELS = [name for name in huggingface.MODELS if name not in test_huggingface.REFUSED]
WORKLOADS: dict[str, Callable[[str], ss.Workload]] = {
    **{f"zoo {name}": lambda key: test_zoo.workload(key.split()[1]) for name in test_zoo.SMALL},
    **{f"hf {name}": lambda key: huggingface.workload(key.split()[1]) for name in MODELS},
}


@pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")  # of DeBERTa's
@pytest.mark.parametrize("name", WORKLOADS)
def test_saved_bytes_are_what_eager_keeps(name: str) -> None:
    """Ours may be more: a concatenation is made anew for each of its readers. Or less: eager's einsum makes copies that
    are contiguous, and its attention keeps all scores where heads share keys by broadcasting."""
    work = WORKLOADS[name](name)
    ours, eager = ss.capture(work).facts.saved_bytes, saved_by_eager(work)
    assert 0.9 * eager <= ours <= 1.25 * eager


def test_the_summary_names_what_has_no_rule() -> None:
    model = Function(lambda x, w: torch.logcumsumexp(x @ w, 0), rand(6, 6))
    graph = ss.capture(model, (rand(4, 6),), loss=torch.sum)
    (share,) = graph.facts.unruled.values()
    assert share == pytest.approx(24 / sum(op.flops for op in graph.ops))
    assert f"logcumsumexp ({share:.1%} of the flops)" in str(graph)
