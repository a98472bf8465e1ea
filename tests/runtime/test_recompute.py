"""What is recomputed is dropped, and computed once more; what a user does with such a model still works."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

import soapstone as ss
from soapstone.runtime import ThreadTransport
from soapstone.runtime.transports import run_threads
from tests.support.models import CASES, captured
from tests.support.training import SEED


class Counted(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Products, as they are computed."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.calls[str(func.overloadpacket).removeprefix("aten.")] += 1
        return func(*args, **(kwargs or {}))


def trained(*marked: str, steps: int = 2) -> tuple[list[Counter[str]], list[int], torch.Tensor]:
    """On one rank: the calls of each step, the bytes that autograd keeps beside recomputed segments, and a gradient."""
    graph, topology = captured("mlp"), ss.Topology.parse("cpu:1x1")
    data = ss.baselines.data_parallel(graph, topology)
    strategy = data.replace({name: replace(data[name], recompute=True) for name in marked})

    def act(rank: int, transport: ThreadTransport) -> tuple[list[Counter[str]], list[int], torch.Tensor]:
        torch.manual_seed(SEED)
        parallel = ss.parallelize(CASES["mlp"].workload(), graph, topology, strategy, transport=transport)
        calls, kept = [], []
        for batch in CASES["mlp"].batches(steps):
            sizes: list[int] = []

            def pack(tensor: torch.Tensor, sizes: list[int] = sizes) -> torch.Tensor:
                sizes.append(tensor.numel() * tensor.element_size())
                return tensor

            with Counted() as counted, torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
                parallel.step(*batch)
            calls.append(counted.calls)
            kept.append(sum(sizes))
        return calls, kept, parallel.gradients()["first.weight"]

    return run_threads(1, act)[0]


def products(calls: Counter[str]) -> int:
    return calls["addmm"] + calls["mm"]


def test_just_what_is_recomputed_is_computed_again() -> None:
    (_, plain), (_, most), gradient = trained()
    (_, again), (_, less), same = trained("first", "second")
    assert products(again) == products(plain) + 2  # the last is not needed again
    assert less < most
    assert torch.equal(gradient, same)
