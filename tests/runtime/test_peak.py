"""A rank that has the model alone needs at most 3% more memory than eager PyTorch."""

from __future__ import annotations

import gc
from typing import Any

import pytest
import torch

import soapstone as ss
from soapstone.runtime import Parallel
from soapstone.runtime.transports import alone
from soapstone.tracing.precision import eager_loss
from tests.support.allocations import peak_of
from tests.support.seeds import cases

pytest.importorskip("transformers")
from tests.support import huggingface

TIMES = 16  # as many samples: tiny models have tiny activations
LANGUAGE = ("llama", "qwen3", "gemma2", "phi3")
OTHERS = ("bert", "vit", "convnext", "whisper")
CASES = [(name, "bfloat16") for name in LANGUAGE] + [(name, "autocast:cpu") for name in ("llama", *OTHERS)]
OFTEN = {("llama", "bfloat16"), ("bert", "autocast:cpu")}


def made(name: str, precision: str) -> ss.Workload:
    work = huggingface.workload(name)
    work = work.filled(*(torch.cat([x] * TIMES) for x in work.batch))
    return work.to("bfloat16") if precision == "bfloat16" else work


def on_one_rank(work: ss.Workload, precision: str) -> Parallel:
    graph, topology = ss.capture(work, precision=precision), ss.Topology.parse("cpu:1x1")
    return ss.parallelize(work, graph, topology, ss.baselines.data_parallel(graph, topology), transport=alone())


def second_peak(act: Any, batch: Any, parameters: Any) -> int:
    """Of the second step, when the optimizer has its state."""
    optimizer = torch.optim.AdamW(parameters)

    def step() -> None:
        act()
        optimizer.step()
        optimizer.zero_grad()

    step()
    gc.collect()
    return peak_of(step, batch, optimizer)


@pytest.mark.parametrize("case", cases(CASES, long=set(CASES) - OFTEN), ids=str)
def test_a_step_takes_as_much_memory_as_eager(case: tuple[str, str]) -> None:
    name, precision = case
    asked = "" if precision == "bfloat16" else precision
    plain = made(name, precision)

    def eager() -> None:
        eager_loss(plain, plain.batch, asked).backward()  # type: ignore[no-untyped-call]

    wanted = second_peak(eager, plain.batch, plain.model.parameters())
    work = made(name, precision)
    parallel = on_one_rank(work, asked)
    found = second_peak(lambda: parallel.step(*work.batch), work.batch, parallel.parameters())
    assert found <= 1.03 * wanted


class Dropped(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = torch.nn.Linear(5, 37), torch.nn.Linear(37, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(torch.nn.functional.dropout(torch.tanh(self.first(x))))  # type: ignore[no-any-return]


def test_nothing_of_a_step_stays() -> None:
    """The masks of dropout were recorded together with all that was computed."""
    work = ss.Workload(Dropped(), (torch.randn(3, 5),), loss=torch.mean)
    parallel = on_one_rank(work, "")
    parallel.step(*work.batch)
    gc.collect()
    left = [x for x in gc.get_objects() if type(x) is torch.Tensor and x.shape == (3, 37) and x.is_floating_point()]
    assert not left
