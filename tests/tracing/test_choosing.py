"""Loops over experts as people write them: rows picked by a mask, computed and put back; read as all rows."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import soapstone as ss
from tests.support.seeds import cases, seeds
from tests.support.training import assert_same, train_plain, train_threads

Layer = Callable[["Experts", torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
WIDTH, EXPERTS = 8, 4


class Experts(nn.Module):
    """Some experts for each row of [sample, length, width]; no row chooses the last."""

    def __init__(self, layer: Layer, flat: bool = True) -> None:
        super().__init__()
        self.layer, self.flat = layer, flat
        self.router = nn.Linear(WIDTH, EXPERTS)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(WIDTH, 6), nn.SiLU(), nn.Linear(6, WIDTH)) for _ in range(EXPERTS)
        )
        with torch.no_grad():
            self.router.bias[-1] = -1e3

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = x.reshape(-1, WIDTH) if self.flat else x
        weights, chosen = torch.topk(self.router(rows).softmax(-1), 2)
        return self.layer(self, rows, weights, chosen).view_as(x)


def where_and_index_add(self: Experts, x: torch.Tensor, weights: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
    out = torch.zeros_like(x)
    for e, expert in enumerate(self.experts):
        rows, slot = torch.where(chosen == e)
        out.index_add_(0, rows, expert(x[rows]) * weights[rows, slot, None])
    return out


def added_in_place(self: Experts, x: torch.Tensor, weights: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
    out = torch.zeros_like(x)
    for e, expert in enumerate(self.experts):
        rows, slot = torch.where(chosen == e)
        out[rows] += expert(x[rows]) * weights[rows, slot].unsqueeze(-1)
    return out


def boolean_masks(self: Experts, x: torch.Tensor, weights: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
    out = torch.zeros_like(x)
    every = torch.zeros(x.shape[0], EXPERTS, dtype=x.dtype).scatter(1, chosen, weights)
    for e, expert in enumerate(self.experts):
        mask = (chosen == e).any(-1)
        out[mask] += expert(x[mask]) * every[mask, e].unsqueeze(-1)
    return out


def masks_of_two_axes(self: Experts, x: torch.Tensor, weights: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
    out = torch.zeros_like(x)
    for e, expert in enumerate(self.experts):
        mask = (chosen == e).any(-1)
        out[mask] = out[mask] + expert(x[mask]) * (weights * (chosen == e)).sum(-1)[mask].unsqueeze(-1)
    return out


def one_hot_turned(self: Experts, x: torch.Tensor, weights: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
    out, masks = torch.zeros_like(x), F.one_hot(chosen, EXPERTS).permute(2, 1, 0)
    for e, expert in enumerate(self.experts):
        slot, rows = torch.where(masks[e])
        made = expert(x[None, rows].reshape(-1, WIDTH)) * weights[rows, slot, None]
        out.index_add_(0, rows, made.to(x.dtype))
    return out


def nonzero_in_columns(self: Experts, x: torch.Tensor, weights: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
    out = torch.zeros_like(x)
    for e, expert in enumerate(self.experts):
        found = (chosen == e).nonzero()
        rows, slot = found[:, 0], found[:, 1]
        made = F.layer_norm(expert(x.index_select(0, rows)), (WIDTH,)).softmax(-1)
        out = out.index_add(0, rows, made * weights[rows, slot].unsqueeze(1))
    return out


def added_up(self: Experts, x: torch.Tensor, weights: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
    out = torch.zeros_like(x)
    for e, expert in enumerate(self.experts):
        rows, slot = (chosen == e).nonzero(as_tuple=True)
        made = expert(x[rows] * weights[rows, slot].reshape(-1, 1))
        out = out.index_put((rows,), made, accumulate=True)
    return out


def one_expert_a_row(self: Experts, x: torch.Tensor, weights: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
    out, best = torch.zeros_like(x), chosen[:, 0]
    for e, expert in enumerate(self.experts):
        rows = torch.nonzero(best == e).squeeze(-1)
        out[rows] = expert(x[rows]) * weights[rows, 0:1]
    return out


def experts_that_were_hit(self: Experts, x: torch.Tensor, weights: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
    out, masks = torch.zeros_like(x), F.one_hot(chosen, EXPERTS).permute(2, 1, 0)
    up = torch.stack([expert[0].weight for expert in self.experts])  # type: ignore[index]
    for found in (masks.sum((-1, -2)) > 0).nonzero():
        e = found[0]
        if e == EXPERTS:
            continue
        slot, rows = torch.where(masks[e])
        out.index_add_(0, rows, F.linear(F.linear(x[rows], up[e]), up[e].t()) * weights[rows, slot, None])
    return out


def skipped_if_empty(
    self: Experts, x: torch.Tensor, weights: torch.Tensor, chosen: torch.Tensor, by_mask: bool = False
) -> torch.Tensor:
    out = torch.zeros_like(x)
    for e, expert in enumerate(self.experts[:-1]):
        rows, slot = torch.where(chosen == e)
        if (chosen == e).any() if by_mask else rows.numel() > 0:
            out.index_add_(0, rows, expert(x[rows]) * weights[rows, slot, None])
    unused: torch.Tensor = 0 * self.experts[-1](x)
    return out + unused


LAYERS: dict[str, Callable[[], Experts]] = {
    layer.__name__: partial(Experts, layer)
    for layer in (where_and_index_add, added_in_place, boolean_masks, one_hot_turned, nonzero_in_columns, added_up,
                  one_expert_a_row, skipped_if_empty, experts_that_were_hit)
}  # fmt: skip
LAYERS["skipped_if_no_mask"] = partial(Experts, partial(skipped_if_empty, by_mask=True))
OFTEN = {"where_and_index_add", "boolean_masks"}
LAYERS["masks_of_two_axes"] = partial(Experts, masks_of_two_axes, flat=False)


def workload(make: Callable[[], nn.Module]) -> ss.Workload:
    torch.manual_seed(1)
    return ss.Workload(make().double(), (torch.randn(4, 5, WIDTH).double(),), loss=lambda y: y.square().mean())


@pytest.mark.parametrize("name", cases(LAYERS, long=LAYERS.keys() - OFTEN))
@pytest.mark.parametrize("seed", seeds(1, 4))
def test_a_loop_over_experts_trains_like_one_device(name: str, seed: int) -> None:
    work = workload(LAYERS[name])
    graph, topology = ss.capture(work), ss.Topology.parse("cpu:1x3")
    assert graph.unruled == ()
    assert graph.facts.split_share == 1.0
    wanted = train_plain(workload(LAYERS[name]), [work.batch] * 2)
    strategy = ss.baselines.random(graph, topology, seed=seed)
    for found in train_threads(lambda: workload(LAYERS[name]), graph, strategy, [work.batch] * 2):
        assert_same(found, wanted)


def test_an_expert_computes_each_row_once_for_all_that_chose_it() -> None:
    graph = ss.capture(workload(LAYERS["where_and_index_add"]))
    rows, hidden = 4 * 5, 6
    layers = [op for op in graph.ops if op.kind == "linear" and ".experts" in f".{op.name}"]
    assert sum(op.steps[op.head].flops for op in layers) == EXPERTS * 2 * (2 * rows * WIDTH * hidden)


def meeting(self: Experts, x: torch.Tensor, weights: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
    out = torch.zeros_like(x)
    for e, expert in enumerate(self.experts):
        rows, _ = torch.where(chosen == e)
        made = expert(x[rows])
        out = out.index_add(0, rows, made - made.mean(0))
    return out


def counting(self: Experts, x: torch.Tensor, weights: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
    out = torch.zeros_like(x)
    for e, expert in enumerate(self.experts):
        rows, _ = torch.where(chosen == e)
        out = out.index_add(0, rows, expert(x[rows]) / rows.shape[0])
    return out


def written_twice(self: Experts, x: torch.Tensor, weights: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
    out = torch.zeros_like(x)
    for e, expert in enumerate(self.experts):
        rows, slot = torch.where(chosen % 2 == e)  # which may be set twice in a row
        out[rows] = expert(x[rows]) * weights[rows, slot, None]
    return out


def branching(self: Experts, x: torch.Tensor, weights: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
    if (chosen == 1).any():
        x = 2 * x
    return x * weights.sum()


def looping(self: Experts, x: torch.Tensor, weights: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
    for e in (chosen.sum(0) > 0).nonzero():
        x = x + weights.sum() * e
    return x


def measured(self: Experts, x: torch.Tensor, weights: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
    rows, _ = torch.where(chosen == 0)
    return x * weights.sum() * len(rows)


def dropping(self: Experts, x: torch.Tensor, weights: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
    rows, _ = torch.where(chosen == 0)
    return torch.zeros_like(x).index_add(0, rows, F.dropout(self.experts[0](x[rows]), 0.5))


@pytest.mark.parametrize(
    ("layer", "sentence"),
    [
        (meeting, r"how many rows .*test_choosing.py, line \d+: return self.layer.*compute all rows"),
        (counting, "how many rows"),
        (written_twice, "how many rows"),
        (dropping, "how many rows"),
        (branching, "where a mask picks no row"),
        (looping, "where a mask picks no row"),
        (measured, r"len\(\) has to be a number.*use \.numel\(\)"),
    ],
)
def test_what_is_more_than_that_is_refused_in_a_sentence(layer: Layer, sentence: str) -> None:
    with pytest.raises(ss.SoapstoneError, match=sentence):
        ss.capture(workload(partial(Experts, layer)))


class Rows(nn.Module):
    """A function of rows, and of what they are picked by."""

    def __init__(self, function: Callable[..., torch.Tensor]) -> None:
        super().__init__()
        self.layer, self.function = nn.Linear(WIDTH, WIDTH), function

    def forward(self, x: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        return self.function(x, self.layer(x), ids)


def capture_rows(function: Callable[..., torch.Tensor]) -> ss.OperatorGraph:
    torch.manual_seed(1)
    batch = torch.randn(6, WIDTH).double(), torch.tensor([1, 0, 2, 1, 1, 0])
    return ss.capture(ss.Workload(Rows(function).double(), batch, loss=lambda y: y.square().mean()))


def put(change: Callable[[torch.Tensor], torch.Tensor]) -> Callable[..., torch.Tensor]:
    """Rows that are changed together where a mask picks them."""
    return lambda x, h, ids: h.index_put((ids == 1,), change(h[ids == 1]))


def twice(x: torch.Tensor, h: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    return (2 if (ids == 1).any() else 1) * put(torch.tanh)(x, h, ids)


def at_once(x: torch.Tensor, h: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    (rows,) = torch.where(ids == 1)
    return h.index_add(0, rows, x[rows]) if rows.numel() > 0 else 3 * h


def first_hit(x: torch.Tensor, h: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    rows = (ids == 1).nonzero()[0]
    return torch.zeros_like(x).index_add(0, rows, h[rows])


MEETING: dict[str, Callable[..., torch.Tensor]] = {
    **{
        name: put(change)
        for name, change in {
            "cumsum": lambda y: y.cumsum(0),
            "softmax": lambda y: y.softmax(0),
            "sort": lambda y: y.sort(0)[0],
            "flip": lambda y: y.flip(0),
            "roll": lambda y: torch.cat([y[1:], y[:1]]),
            "nothing and all": lambda y: torch.cat([y[:0], y]),
            "root": torch.sqrt,
            "quotient": lambda y: y / y.sum(-1, keepdim=True),
            "looked up": lambda y: y * F.one_hot(y.argmax(-1), WIDTH),
            "broadcast": lambda y: y.sum(-1, keepdim=True),
        }.items()
    },
    "a branch with more": twice,
    "another way": at_once,
    "the first hit": first_hit,
}


@pytest.mark.parametrize("name", MEETING)
def test_rows_that_meet_or_may_fail_and_branches_that_do_more_are_refused(name: str) -> None:
    with pytest.raises(ss.SoapstoneError, match=r"how many rows|where a mask picks no row"):
        capture_rows(MEETING[name])


def test_reshaped_rows_are_told_from_others_of_the_same_number() -> None:
    def mixed(x: torch.Tensor, h: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        return h.index_put((ids == 1,), h[ids == 1].reshape(6, -1).softmax(1).reshape(-1, WIDTH))

    with pytest.raises(ss.SoapstoneError, match="how many rows"):
        capture_rows(mixed)


def as_the_sentence_says(self: Experts, x: torch.Tensor, weights: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
    out = torch.zeros_like(x)
    for e, expert in enumerate(self.experts):
        out = out + expert(x) * (weights * (chosen == e)).sum(-1, keepdim=True)
    return out


def test_the_code_that_the_sentence_gives_computes_the_same() -> None:
    losses = [
        train_plain(work := workload(partial(Experts, layer)), [work.batch] * 2).losses
        for layer in (as_the_sentence_says, where_and_index_add)
    ]
    torch.testing.assert_close(*losses)
    ss.capture(workload(partial(Experts, as_the_sentence_says)))
