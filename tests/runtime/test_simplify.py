"""A recording that was made simpler computes the same, gradients too, with fewer calls."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from soapstone.parts import record
from soapstone.parts.frames import Unread


def halves(x: torch.Tensor) -> list[torch.Tensor]:
    return [x.narrow(1, 0, 4) * x.narrow(1, 4, 4)]


def some(x: torch.Tensor) -> list[torch.Tensor]:
    return [x.narrow(1, 1, 2).exp() + x.narrow(1, 5, 2)]


def overlapping(x: torch.Tensor) -> list[torch.Tensor]:
    return [x.narrow(1, 0, 4) * x.narrow(1, 3, 4)]


def hulls(x: torch.Tensor) -> list[torch.Tensor]:
    """The second half of each half, as a part reads it that turns halves of heads."""
    second, fourth = x.narrow(1, 2, 2), x.narrow(1, 6, 2)
    wide = [F.pad(each, [2, 0], value=Unread()).reshape(-1, 2, 2)[:, 1] for each in (second, fourth)]
    return [wide[0] * wide[1] + x.narrow(1, 0, 4).reshape(-1, 2, 2)[:, 0]]


def zeros(x: torch.Tensor) -> list[torch.Tensor]:
    """Padding that is read."""
    return [F.pad(x.narrow(1, 2, 2), [2, 0]) * x.narrow(1, 4, 4)]


def wholes(x: torch.Tensor) -> list[torch.Tensor]:
    return [x[:, 0:][:, ::1].exp() + x.narrow(1, 0, 8)]


def raised(x: torch.Tensor) -> list[torch.Tensor]:
    y = x.to(torch.float32)
    return [y.to(torch.float64).pow(2) * y.to(torch.float64)]


def lowered(x: torch.Tensor) -> list[torch.Tensor]:
    """As autocast does for each op, which adds the gradients in the larger type."""
    return [x.to(torch.float32).pow(2) * x.to(torch.float32)]


def changed(x: torch.Tensor) -> list[torch.Tensor]:
    """A cast of what is changed between the casts."""
    y = x * 2
    first = y.to(torch.float32)
    y.add_(1)
    return [first * y.to(torch.float32)]


CASES: dict[Any, tuple[dict[str, int], dict[str, int]]] = {
    halves: ({"split": 1}, {"narrow": 0}),
    some: ({"split": 1}, {"narrow": 0}),
    overlapping: ({"narrow": 2}, {"split": 0}),
    hulls: ({"split": 1}, {"pad": 0}),
    zeros: ({"pad": 1}, {}),
    wholes: ({}, {"narrow": 0}),
    raised: ({"to": 2}, {}),
    lowered: ({"to": 2}, {}),
    changed: ({"to": 2}, {}),
}


@pytest.mark.parametrize("act", CASES, ids=lambda act: act.__name__)
def test_it_computes_the_same_with_fewer_calls(act: Any) -> None:
    torch.manual_seed(0)
    x, y = (torch.randn(3, 8, dtype=torch.float64, requires_grad=True) for _ in range(2))
    recording, _ = record(lambda xs, _: act(xs[0]), [x], None)
    (wanted,), (found,) = act(y), recording.run([y], None)
    assert torch.equal(wanted, found)
    own, theirs = (torch.autograd.grad(each.sum(), y)[0] for each in (found, wanted))
    torch.testing.assert_close(own, theirs, rtol=1e-6, atol=0)
    calls = Counter(getattr(node.target, "__name__", node.target) for node in recording.graph.nodes)
    there, not_there = CASES[act]
    assert all(calls[name] == count for name, count in (there | not_there).items()), calls


def test_a_parameter_is_cast_once() -> None:
    """As autocast does, too."""
    recording, _ = record(lambda xs, _: lowered(xs[0]), [torch.nn.Parameter(torch.ones(3, 8))], None)
    assert sum(node.target == "to" for node in recording.graph.nodes) == 0  # float32 already
    weight = torch.nn.Parameter(torch.ones(3, 8, dtype=torch.float64))
    recording, _ = record(lambda xs, _: lowered(xs[0]), [weight], None)
    assert sum(node.target == "to" for node in recording.graph.nodes) == 1
