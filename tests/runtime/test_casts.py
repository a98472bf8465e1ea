"""Sharded weights that are used in another type: their casts do not stay in memory, and nothing else changes."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import soapstone as ss
from soapstone.parts import record
from soapstone.runtime import ThreadTransport
from soapstone.runtime.casts import Cast

WIDTH = 2048  # so that each layer has a bucket of its own


def work() -> ss.Workload:
    torch.manual_seed(0)
    layers = [nn.Linear(16, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH)]
    model = nn.Sequential(*layers, nn.Dropout(0.1), nn.Linear(WIDTH, 3))
    return ss.Workload(model, (torch.randn(8, 16),), loss=F.cross_entropy, targets=(torch.randint(0, 3, (8,)),))


def trained(precision: str, baseline: str, microbatches: int) -> tuple[list[float], dict[str, torch.Tensor]]:
    works = [work() for _ in range(2)]
    graph, topology = ss.capture(works[0], precision=precision), ss.Topology.parse("cpu:1x2")
    chosen = ss.baselines.baseline(baseline, graph, topology)
    strategy = ss.Strategy(graph, topology, {op.name: chosen[op.name] for op in graph.ops}, microbatches)

    def run(rank: int, transport: ThreadTransport) -> tuple[list[float], dict[str, torch.Tensor]]:
        parallel = ss.parallelize(works[rank], graph, topology, strategy, transport=transport)
        optimizer = torch.optim.SGD(parallel.parameters(), lr=0.1)
        losses = []
        for _ in range(3):
            losses.append(parallel.step(*works[rank].batch).item())
            optimizer.step()
        return losses, parallel.state_dict()

    return ss.run_threads(2, run, timeout=120)[0]


@pytest.mark.parametrize("microbatches", [1, 2])
@pytest.mark.parametrize("precision", ["mixed", "autocast:cpu"])
def test_weights_that_are_cast_anew_train_like_those_that_stay(
    precision: str, microbatches: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    losses, state = trained(precision, "zero1", microbatches)
    freed: list[int] = []
    free = Cast.free

    def counted(cast: Cast) -> None:
        free(cast)
        freed.append(cast._bytes)

    def kept(cast: Cast) -> None:
        make(cast)
        again.append(weakref.ref(cast))

    make = Cast.make
    again: list[weakref.ref[Cast]] = []
    monkeypatch.setattr(Cast, "make", kept)
    monkeypatch.setattr(Cast, "free", counted)
    found, weights = trained(precision, "fsdp", microbatches)
    assert found == pytest.approx(losses, rel=1e-6)
    for name, tensor in state.items():
        torch.testing.assert_close(weights[name], tensor, rtol=1e-5, atol=1e-6)
    gc.collect()
    assert again
    assert not any(cast() for cast in again)  # nor do they stay after backward
    assert freed.count(2 * WIDTH * WIDTH) == 2 * 2 * 3 * microbatches  # layers, ranks, steps


@pytest.mark.parametrize(
    ("act", "count"),
    [
        (lambda x: [(x.to(torch.bfloat16) * 2).float()], 1),
        (lambda x: [(x.t().to(torch.bfloat16) * 2).float(), x.to(torch.bfloat16).sum()], 2),
        (lambda x: [x.to(torch.bfloat16)], 0),  # somebody else has them then
        (lambda x: [x.to(torch.bfloat16).t()], 0),
        (lambda x: [(x * 2).to(torch.bfloat16).sum()], 0),  # no weight
    ],
)
def test_the_casts_of_an_input_are_put_out(act: Any, count: int) -> None:
    x = torch.randn(2, 3)
    recording, outputs = record(lambda xs, _: act(xs[0]), [x], None)
    recording.put_out_casts([0])
    found = recording.run([x], None)
    assert len(found) == len(outputs) + 2 * count
    for source, cast in zip(found[len(outputs) :: 2], found[len(outputs) + 1 :: 2]):
        assert torch.equal(source.to(torch.bfloat16), cast)
