"""Optimizers that need whole parameters are refused where a rank has only parts of them, and right elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn, optim

import soapstone as ss
from soapstone.runtime import ThreadTransport
from soapstone.runtime.elementwise import is_elementwise
from soapstone.strategy import Configuration
from tests.support.models import ONE_AT_A_TIME


class Lamb(optim.Optimizer):
    """Adam's direction, scaled by norms of the whole parameter and of its update."""

    def __init__(self, params: Any, lr: float) -> None:
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                state["m"] = state.get("m", 0) * 0.9 + p.grad * 0.1
                p.sub_(state["m"], alpha=group["lr"] * float(p.norm() / (state["m"].norm() + 1e-6)))


class Own(Lamb):
    """Elementwise, and of no class that torch has."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            for p in group["params"]:
                p.sub_(p.grad.sign(), alpha=group["lr"])


OPTIMIZERS: dict[str, Callable[[Any], optim.Optimizer]] = {
    "Lamb": lambda p: Lamb(p, 0.01),
    "Own": lambda p: Own(p, 0.01),
    "Adafactor": lambda p: optim.Adafactor(p, lr=0.01),
    "LBFGS": lambda p: optim.LBFGS(p, lr=0.01),
    "Muon": lambda p: optim.Muon(p, lr=0.01),
    "AdamW": lambda p: optim.AdamW(p, lr=0.01),
}
RIGHT = ("Own", "AdamW")


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_it_is_found_out_which_optimizers_are_elementwise(name: str) -> None:
    optimizer = OPTIMIZERS[name]([nn.Parameter(torch.randn(4, 4))])
    assert is_elementwise(optimizer) == (name in RIGHT)
    assert not optimizer.state


@pytest.mark.parametrize(
    "kind", [optim.SGD, optim.Adam, optim.NAdam, optim.RAdam, optim.Adamax, optim.Adadelta, optim.Adagrad, optim.ASGD,
             optim.RMSprop, optim.Rprop],
)  # fmt: skip
def test_the_list_of_elementwise_optimizers_is_right(kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("soapstone.runtime.elementwise._ELEMENTWISE", ())
    assert is_elementwise(kind([nn.Parameter(torch.randn(4, 4))], lr=0.01))


def work_of() -> ss.Workload:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8, bias=False), nn.Tanh(), nn.Linear(8, 4, bias=False))
    x, y = torch.randn(4, 6), torch.randint(0, 4, (4,))
    return ss.Workload(model, (x,), loss=nn.functional.cross_entropy, targets=(y,))


def trained(name: str, shard: str) -> list[torch.Tensor]:
    works = [work_of(), work_of()]
    with ONE_AT_A_TIME:
        graph = ss.capture(works[0])
    topology = ss.Topology.parse("cpu:1x2")
    data = ss.baselines.data_parallel(graph, topology)
    half = Configuration({"channel": 2}, (0, 1))
    rows = {
        op.name: half if shard == "channel" else Configuration({"sample": 2}, (0, 1), shard=shard)
        for op, tensors in zip(graph.ops, graph.trains)
        if tensors
    }

    def run(rank: int, transport: ThreadTransport) -> list[torch.Tensor]:
        parallel = ss.parallelize(works[rank], graph, topology, data.replace(rows), transport=transport)
        optimizer = OPTIMIZERS[name](parallel.parameters())
        for _ in range(2):
            parallel.step(*works[rank].batch)
            optimizer.step()
        return list(parallel.state_dict().values())

    return ss.run_threads(2, run, timeout=60)[0]


@pytest.mark.parametrize("name", ["Lamb", "Adafactor", "Muon", "Own"])
def test_whole_parameters_train_as_on_one_device(name: str) -> None:
    work = work_of()
    optimizer = OPTIMIZERS[name](work.model.parameters())
    for _ in range(2):
        optimizer.zero_grad()
        nn.functional.cross_entropy(work.model(work.batch[0]), work.batch[1]).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    for found, wanted in zip(trained(name, "none"), work.model.state_dict().values(), strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(("name", "shard"), [("Lamb", "all"), ("Adafactor", "optimizer"), ("Muon", "channel")])
def test_parts_of_parameters_are_refused_in_a_sentence(name: str, shard: str) -> None:
    with pytest.raises(ss.SoapstoneError, match=rf"{name} computes with whole parameters, but '0.weight' is cut"):
        trained(name, shard)


def test_an_own_elementwise_optimizer_takes_parts() -> None:
    for found, wanted in zip(trained("Own", "all"), trained("Own", "none"), strict=True):
        torch.testing.assert_close(found, wanted)


def test_every_group_is_tried() -> None:
    class Mixed(Lamb):
        """Whole parameters in the groups that say so."""

        @torch.no_grad()
        def step(self, closure: Any = None) -> Any:
            for group in self.param_groups:
                for p in group["params"]:
                    p.sub_(p.grad / (p.grad.norm() if group.get("whole") else 1), alpha=group["lr"])

    first, second = ({"params": [nn.Parameter(torch.randn(4, 4))], "whole": whole} for whole in (False, True))
    assert is_elementwise(Mixed([first], 0.01))
    assert not is_elementwise(Mixed([{**first}, second], 0.01))


def test_a_schedule_changes_nothing_about_that() -> None:
    optimizer = Own([nn.Parameter(torch.randn(4, 4))], 0.01)
    optim.lr_scheduler.LambdaLR(optimizer, lambda _: 1.0)
    assert is_elementwise(optimizer)
