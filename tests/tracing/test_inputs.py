"""Inputs as people have them, and what torch.export would not tell of a model."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn

import soapstone as ss
from soapstone.errors import CaptureError
from soapstone.loading import Request, load_graph
from soapstone.runtime.transports import alone
from tests.support.training import assert_same, train_plain, train_threads

X = torch.randn(4, 3, dtype=torch.float64)


@dataclass
class Images:
    pixels: torch.Tensor
    about: dict[str, Any]


class Pair(NamedTuple):
    first: torch.Tensor
    second: torch.Tensor


class Nested(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3, dtype=torch.float64)

    def forward(self, images: Images, *, more: Pair) -> dict[str, torch.Tensor]:
        made = self.layer(images.pixels) * images.about["scale"] + images.about["shift"]
        return {"made": made + more.first - more.second}


def loss(output: dict[str, torch.Tensor], wanted: dict[str, torch.Tensor]) -> torch.Tensor:
    return ((output["made"] - wanted["y"]) ** 2).mean()


def nested() -> ss.Workload:
    torch.manual_seed(0)
    images = Images(X, {"scale": 2.0, "shift": X + 1})
    return ss.Workload(Nested(), (images,), loss=loss, targets=({"y": X * 3},), kwargs={"more": Pair(X, X * 2)})


def test_tensors_may_be_inside_of_what_is_given() -> None:
    work, topology = nested(), ss.Topology.parse("cpu:1x2")
    assert [tuple(x.shape) for x in work.batch] == [(4, 3)] * 5
    graph = ss.capture(work)
    strategy = ss.baselines.data_parallel(graph, topology)
    wanted = train_plain(nested(), [work.batch] * 2)
    for record in train_threads(nested, graph, strategy, [work.batch] * 2):
        assert_same(record, wanted)


def test_a_step_takes_what_the_model_takes() -> None:
    work, topology = nested(), ss.Topology.parse("cpu:1x1")
    graph = ss.capture(work)
    strategy = ss.baselines.data_parallel(graph, topology)
    parallel = ss.parallelize(work, graph, topology, strategy, transport=alone())
    (images,), (wanted,), more = work.inputs, work.targets, work.kwargs["more"]
    expected = work.compute_loss(*work.batch).detach()
    assert float(parallel.step(images, more, wanted)) == pytest.approx(float(expected), rel=1e-12)


def test_samples_must_match() -> None:
    with pytest.raises(CaptureError, match="tensors of the batch have 4 and 6 samples along axis 0; give all as many"):
        ss.capture(nn.Linear(3, 3), (torch.randn(4, 3),), loss=lambda y, t: y.mean(), targets=(torch.randn(6, 3),))
    flat = ss.capture(
        nn.Linear(3, 3), (torch.randn(4, 3),), loss=lambda y, t: y.mean() * t.mean(), targets=(torch.randn(12),)
    )
    assert flat.num_samples == 4


class Dropping(nn.Module):
    def __init__(self, layerdrop: float) -> None:
        super().__init__()
        self.layer, self.layerdrop = nn.Linear(3, 3), layerdrop

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        chance = torch.rand([])
        if self.training and chance < self.layerdrop:
            return x
        made: torch.Tensor = self.layer(x)
        return made


def test_a_layer_that_is_never_left_out_is_no_branch() -> None:
    graph = ss.capture(Dropping(0.0), (torch.randn(4, 3),), loss=torch.sum)
    assert [op.name for op in graph.ops] == ["layer", "sum"]
    with pytest.raises(CaptureError, match=r"at random.*chance < self.layerdrop.*; set layerdrop to 0"):
        ss.capture(Dropping(0.1), (torch.randn(4, 3),), loss=torch.sum)


class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x * x

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> torch.Tensor:
        return grads[0] * 0


class Squaring(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = Square.apply(self.layer(x))  # type: ignore[no-untyped-call]
        return made


def test_a_function_whose_backward_would_be_dropped_is_refused() -> None:
    with pytest.raises(CaptureError, match=r"Square is an autograd.Function.*custom_op"):
        ss.capture(Squaring(), (torch.randn(4, 3),), loss=torch.sum)


@torch.library.custom_op("tests::doubled", mutates_args=())
def doubled(x: torch.Tensor) -> torch.Tensor:
    return x * 2


doubled.register_fake(torch.empty_like)
doubled.register_autograd(lambda ctx, grad: grad * 2)


@torch.library.custom_op("tests::frozen", mutates_args=())
def frozen(x: torch.Tensor) -> torch.Tensor:
    return x * 2


frozen.register_fake(torch.empty_like)


class Custom(nn.Module):
    def __init__(self, op: Any) -> None:
        super().__init__()
        self.layer, self.op = nn.Linear(3, 3, dtype=torch.float64), op

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = self.op(self.layer(x))
        return made


def test_an_op_of_another_namespace_runs_whole() -> None:
    def make() -> ss.Workload:
        torch.manual_seed(0)
        return ss.Workload(Custom(doubled), (X,), loss=torch.sum)

    graph = ss.capture(make())
    assert graph.unruled == ("tests::doubled",)
    strategy = ss.baselines.data_parallel(graph, ss.Topology.parse("cpu:1x2"))
    wanted = train_plain(make(), [(X,)] * 2)
    for record in train_threads(make, graph, strategy, [(X,)] * 2):
        assert_same(record, wanted)


def test_an_op_without_a_backward_is_refused_where_it_needs_one() -> None:
    with pytest.raises(CaptureError, match=r"tests::frozen.*has no backward; give it one by register_autograd"):
        ss.capture(ss.Workload(Custom(frozen), (X,), loss=torch.sum))


OWN = """
import torch
import soapstone as ss

def make(batch=8, width=4):
    return ss.Workload(torch.nn.Linear(width, 2), (torch.zeros(batch, width),), loss=torch.sum)

def fixed():
    return make()
"""


def test_a_function_of_ones_own_gets_the_batch_that_it_takes(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(OWN)
    name = f"{tmp_path / 'own.py'}"
    assert load_graph(Request(f"{name}:make", 32, {"width": 16})).num_samples == 32
    with pytest.raises(CaptureError, match=r"own.py:make takes no 'depth'; it takes batch, width"):
        load_graph(Request(f"{name}:make", None, {"depth": 3}))
    with pytest.raises(CaptureError, match="takes no 'batch'; it takes no arguments and sets its own"):
        load_graph(Request(f"{name}:fixed", 4))
