"""Models that write in place: read directly where that is safe, functionalised by torch where it is not, the same loss
either way."""

from __future__ import annotations

from collections.abc import Callable
from unittest.mock import patch

import pytest
import torch

from soapstone.tracing import Workload, capture
from soapstone.tracing import export as exporting
from tests.support.split import Function, check_ops, loss_of, rand

T = torch.Tensor


def chained(x: T, w: T) -> T:
    y = (x * w).add_(1).relu_()
    return y.mul_(w) + y


def both_names(x: T, w: T) -> T:
    y = x * w
    z = y.relu_()
    y.add_(1)
    return y * z


def a_slice(x: T, w: T) -> T:
    y = x * w
    y[1:3] += w
    return y


def a_slice_of_a_slice(x: T, w: T) -> T:
    y = x * w
    y[1:][:, 2] *= 3
    return y


def shifted(x: T, w: T) -> T:
    y = x.new_zeros(x.shape)
    y[:, 1:] = (x * w)[:, :-1]
    y[:, 0] = 2
    y.masked_fill_(y > 1, 0.5)
    return y * w


def a_filled_constant(x: T, w: T) -> T:
    steps = torch.arange(4, dtype=torch.float64)
    steps.mul_(2)
    return x * w + steps


def a_constant_and_a_value(x: T, w: T) -> T:
    y = torch.zeros_like(x)
    y.add_(x * w)
    return y * 2


def a_copy_is_another(x: T, w: T) -> T:
    y = x * w
    z = y.clone()
    z.relu_()
    return y - z


def a_view_is_the_same(x: T, w: T) -> T:
    y = x * w
    z = y.view(-1)
    y.relu_()
    return y.sum() + z.cumsum(0)


def an_old_slice_sees_it(x: T, w: T) -> T:
    y = x * w
    z = y[:2]
    y.add_(1)
    return z


def every_second(x: T, w: T) -> T:
    y = x * w
    y[::2] = 0
    return y


def a_transposed_slice(x: T, w: T) -> T:
    y = x * w
    y.t()[1] = w
    return y


def with_a_cast(x: T, w: T) -> T:
    y = (x * w).float()
    y.add_(x)
    return y.double()


def reshaped(x: T, w: T) -> T:
    y = x * w
    y.reshape(-1)[3] = 7
    return y.t().reshape(-1)


READ_DIRECTLY = [chained, both_names, a_slice, a_slice_of_a_slice, shifted, a_filled_constant]
READ_DIRECTLY += [a_constant_and_a_value, a_copy_is_another]
FUNCTIONALISED = [a_view_is_the_same, an_old_slice_sees_it, every_second, a_transposed_slice, with_a_cast, reshaped]


@pytest.mark.parametrize("function", [*READ_DIRECTLY, *FUNCTIONALISED], ids=lambda f: f.__name__)
@pytest.mark.parametrize("own", [True, False])
def test_writing_in_place_is_what_torch_makes_of_it(function: Callable[..., T], own: bool) -> None:
    torch.manual_seed(2)
    work = Workload(Function(function, rand(1)), (rand(3, 4),), loss=loss_of)
    with patch.object(exporting, "is_readable", wraps=exporting.is_readable if own else lambda _: False) as readable:
        graph = capture(work)
    program = torch.export.export(work.model, work.inputs, strict=False)
    assert readable.called
    assert exporting.is_readable(program.graph_module) == (function in READ_DIRECTLY)
    check_ops(graph, work, lambda lo, hi: min(2, hi))
