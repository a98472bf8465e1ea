"""Models from the corners of PyTorch: trained on strict ranks like on one device, or refused in a sentence."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import soapstone as ss
from tests.support.models import seeded
from tests.support.split import Function, loss_of
from tests.support.training import assert_same, train_plain, train_threads

T = torch.Tensor


def work_of(function: Callable[..., T], *inputs: T) -> ss.Workload:
    with seeded(4):
        x = torch.randn(4, 4, dtype=torch.float64)
    return ss.Workload(Function(function, torch.full((1,), 1.5, dtype=torch.float64)), inputs or (x,), loss=loss_of)


def frozen_factor(x: T, w: T) -> T:
    with torch.no_grad():
        s = x * w
    return s * w


def self_gated(x: T, w: T) -> T:
    h = x * w
    with torch.no_grad():
        t = h.sigmoid()
    return h * t


def dropout_of_nothing(x: T, w: T) -> T:
    y = x * w
    s = F.dropout(y, 0.0, True)
    y.relu_()
    return y + s


def dropout_of_nothing_in_place(x: T, w: T) -> T:
    y = x * w
    s = F.dropout(y, 0.5, False, True)
    s += 1
    return y + s


def constant_changed_after_a_read(x: T, w: T) -> T:
    s = torch.zeros(4, dtype=torch.float64)
    y = x * w + s
    s[1] = 5
    return y * 2 + s


def compared_in_place(x: T, w: T) -> T:
    y = x * 2
    y.gt_(0)
    return (y + y) * w


def filled_diagonal(x: T, w: T) -> T:
    y = x * w
    y.fill_diagonal_(0)
    return y


def transposed_in_place(x: T, w: T) -> T:
    y = x * w
    v = y[0:2, 0:2]
    v.t_()
    return y


def raised_in_place(x: T, w: T) -> T:
    y = x * w
    y **= 2
    return y


def assigned_from_other_types(x: T, w: T) -> T:
    y = x * w
    y[1:] = (x > 0)[1:]
    y[2:] = torch.arange(4)
    y[3:] = (x * w).float()[3:]
    return y * w


def mixed_cat(x: T, w: T) -> T:
    return torch.cat([(x * w).float(), x * w * 1.0001], 0).mul(3).relu().sum(1)


def mixed_stack(x: T, w: T) -> T:
    return torch.stack([(x * w).float(), x * w * 1.0001], 0).mul(3).relu().sum(1)


def dropped_transposed(x: T, w: T) -> T:
    return F.dropout((x * w).t(), 0.5, True, True)


def scaled_up(x: T, w: T) -> T:
    return F.interpolate((x * w)[None, None], scale_factor=1.4)


def scaled_by_two(x: T, w: T) -> T:
    return F.interpolate((x * w)[None, None], scale_factor=2)


def masked_mean(x: T, w: T) -> T:
    mask = x[:, 0] > 0
    each = F.cross_entropy(x * w, torch.tensor([0, 1, 2, 3]), reduction="none")
    return (each * mask).sum() / mask.sum()


def split_constants(x: T, w: T) -> T:
    rows, columns = torch.meshgrid(torch.arange(4.0), torch.arange(4.0), indexing="ij")
    low, high = torch.arange(8.0).chunk(2)
    return x * w + rows.double() * low.double() - columns.double() * high.double()


def repeated(x: T, w: T) -> T:
    return (x * w).repeat_interleave(2)


def gathered_in_part(x: T, w: T) -> T:
    return (x * w).gather(1, torch.tensor([[0, 1]]))


def larger_of_two(x: T, w: T) -> T:
    return torch.max(x * w, x.flip(0)) - torch.min(x * w, w)


def mapped(x: T, w: T) -> T:
    y: T = torch.vmap(lambda row: row * row.sum())(x * w)
    return y


def infinite_scores(x: T, w: T) -> T:
    scores = (x * w).masked_fill(torch.tensor([True, True, False, False]), -torch.inf)
    return F.cross_entropy(scores, torch.tensor([2, 3, -100, 3]))


def a_row_fully_masked(x: T, w: T) -> T:
    q = (x * w)[None]
    mask = torch.ones(4, 4, dtype=torch.bool)
    mask[2] = False
    return F.scaled_dot_product_attention(q, q, q, mask, 0.3)


TRAINED = [
    frozen_factor, self_gated, dropout_of_nothing, dropout_of_nothing_in_place, constant_changed_after_a_read,
    compared_in_place, transposed_in_place, raised_in_place, assigned_from_other_types, mixed_cat,
    mixed_stack, dropped_transposed, scaled_up, scaled_by_two, masked_mean, split_constants, repeated,
    gathered_in_part, larger_of_two, mapped, infinite_scores, a_row_fully_masked,
]  # fmt: skip


@pytest.mark.parametrize("function", TRAINED, ids=lambda f: f.__name__)
def test_it_trains_like_one_device(function: Callable[..., T]) -> None:
    check(lambda: work_of(function))


def check(make: Callable[[], ss.Workload]) -> None:
    graph, batches = ss.capture(make()), [make().batch] * 2
    wanted = train_plain(make(), batches)
    for seed in range(4):
        topology = ss.Topology.parse(f"cpu:1x{1 + seed}")
        strategy = ss.baselines.random(graph, topology, seed=seed)
        for record in train_threads(make, graph, strategy, batches):
            assert_same(record, wanted)


BAGS: dict[str, tuple[Callable[[], nn.Module], tuple[T, ...]]] = {
    "equal": (lambda: nn.EmbeddingBag(10, 3, mode="sum"), (torch.arange(6).view(2, 3),)),
    "unequal": (lambda: nn.EmbeddingBag(10, 3, mode="sum"), (torch.arange(6), torch.tensor([0, 1, 5]))),
    "padded": (lambda: nn.EmbeddingBag(10, 3, padding_idx=0, mode="mean"), (torch.arange(8).view(2, 4) % 4,)),
}


@pytest.mark.parametrize("name", BAGS)
def test_bags_of_any_size_train_like_one_device(name: str) -> None:
    make, inputs = BAGS[name]

    def work() -> ss.Workload:
        with seeded(4):
            return ss.Workload(make().double(), inputs, loss=loss_of)

    check(work)


class Counting(nn.Module):
    def __init__(self, buffer: bool) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.count: T
        count = torch.zeros(())
        self.register_buffer("count", count) if buffer else setattr(self, "count", count)

    def forward(self, x: T) -> T:
        self.count = self.count + 1
        y: T = self.linear(x) * 2
        return y


class CopiedStatistics(nn.Module):
    """A batch norm that changes copies of buffers."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.register_buffer("mean", torch.zeros(4))
        self.register_buffer("var", torch.ones(4))
        self.mean: T
        self.var: T

    def forward(self, x: T) -> T:
        return F.batch_norm(self.linear(x), self.mean.clone(), self.var.clone(), training=True)


def test_copies_of_running_statistics_leave_the_buffers_alone() -> None:
    def work() -> ss.Workload:
        with seeded(4):
            return ss.Workload(CopiedStatistics().double(), (torch.randn(6, 4, dtype=torch.float64),), loss=loss_of)

    check(work)


def written_inside_no_grad(x: T, w: T) -> T:
    y = x * w
    with torch.no_grad():
        y[1:] *= w
    return y


def written_behind_a_detach(x: T, w: T) -> T:
    y = x * w
    y.detach().tanh_()
    return y


def detached_in_place(x: T, w: T) -> T:
    y = x * w
    y.detach_()
    return y + w


def written_beside_einsum(x: T, w: T) -> T:
    y = x * w
    a = torch.einsum("ij->ji", y)
    y += 1
    return a + y


def written_beside_meshgrid(x: T, w: T) -> T:
    y = (x * w)[0]
    a, b = torch.meshgrid(y, y, indexing="ij")
    y += 1
    return a + b + y


X = torch.randn(3, 4)
OUTSIDE = nn.Parameter(torch.ones(4))
REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "a buffer set anew": (lambda: ss.capture(Counting(True), (X,), loss=loss_of), "the model sets 'count' anew"),
    "an attribute set anew": (lambda: ss.capture(Counting(False), (X,), loss=loss_of), "the model sets 'count' anew"),
    "a tracking instance norm": (
        lambda: ss.capture(nn.InstanceNorm1d(4, track_running_stats=True, affine=True), (torch.randn(2, 4, 5),),
                           loss=loss_of), "tracks running statistics, which has no rule"
    ),
    "written inside no_grad": (lambda: ss.capture(work_of(written_inside_no_grad)), "writes in place, inside no_grad"),
    "written behind a detach": (lambda: ss.capture(work_of(written_behind_a_detach)), "changes a detached tensor"),
    "detached in place": (lambda: ss.capture(work_of(detached_in_place)), "detach_ changes a detached tensor"),
    "a diagonal": (lambda: ss.capture(work_of(filled_diagonal)), "how memory is laid out"),
    "beside einsum": (lambda: ss.capture(work_of(written_beside_einsum)), "what einsum or meshgrid shows, too"),
    "beside meshgrid": (lambda: ss.capture(work_of(written_beside_meshgrid)), "what einsum or meshgrid shows, too"),
    "strides": (lambda: ss.capture(work_of(lambda x, w: (x * w).t().as_strided((2, 2), (4, 1)))), "how memory is laid"),
    "bits": (lambda: ss.capture(work_of(lambda x, w: (x * w).detach().view(torch.int64) * w)), "how memory is laid"),
    "complex": (lambda: ss.capture(work_of(lambda x, w: torch.fft.rfft(x * w).abs() + w)), "complex128, which has no"),
    "shapes by data": (lambda: ss.capture(work_of(lambda x, w: (x * w)[x > 0].sum())), "how many rows are picked"),
    "a parameter of the loss": (
        lambda: ss.capture(nn.Linear(4, 4), (X,), loss=lambda y: (y * OUTSIDE).sum()), "is no parameter of the model"
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_would_go_wrong_is_refused(name: str) -> None:
    act, message = REFUSED[name]
    with pytest.raises(ss.SoapstoneError, match=message):
        act()
