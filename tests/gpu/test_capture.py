"""Models that live on the GPU, and autocast there: the graph is the one that a machine without a GPU captures."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import soapstone as ss
from soapstone.runtime.transports import alone
from tests.support import huggingface
from tests.support.models import ALL, seeded
from tests.tracing.test_autocast import compare
from tests.tracing.test_tracing import Mixed

from .models import ZOO

pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")  # of DeBERTa's
CUDA = torch.device("cuda", 0)


def zoo(name: str) -> ss.Workload:
    with seeded(3):
        return ss.zoo.load(name, **ZOO[name])


@pytest.mark.parametrize("name", ALL)
def test_a_model_on_the_gpu_gives_the_same_graph(name: str) -> None:
    work = ALL[name].workload()
    wanted = ss.capture(work).fingerprint
    assert ss.capture(work.on(CUDA)).fingerprint == wanted


@pytest.mark.parametrize("name", ["gpt2", "llama", "alexnet", "rnnlm", "resnet-101"])
def test_autocast_gives_the_same_graph_wherever_the_model_lives(name: str) -> None:
    here = ss.capture(zoo(name), precision="autocast")
    with torch.autocast("cuda", torch.bfloat16):
        around = ss.capture(zoo(name))
        there = ss.capture(zoo(name).on(CUDA))
    assert here.fingerprint == around.fingerprint == there.fingerprint
    assert here.settings.precision == "autocast:cuda"


@pytest.mark.parametrize("make", [lambda: zoo("gpt2"), lambda: zoo("llama"), lambda: zoo("rnnlm")])
def test_autocast_on_one_rank_is_eager_autocast(make: Callable[[], ss.Workload]) -> None:
    graph, topology = ss.capture(make(), precision="autocast"), ss.Topology.parse("h200:1x1")
    work = make().on(CUDA)
    with torch.autocast("cuda", torch.bfloat16):
        wanted = work.compute_loss(*work.batch)
    wanted.backward()  # type: ignore[no-untyped-call]
    strategy = ss.baselines.data_parallel(graph, topology)
    parallel = ss.parallelize(make().on(CUDA), graph, topology, strategy, transport=alone())
    for _ in range(2):  # part by part, then recorded
        loss = parallel.step(*work.batch)
        assert loss.dtype == wanted.dtype == torch.float32
        assert torch.allclose(loss, wanted, rtol=1e-4)
        for name, found in parallel.gradients().items():
            exact = work.model.get_parameter(name).grad
            assert exact is not None
            error: Any = (found.cpu() - exact.cpu()).norm() / exact.norm().cpu().clamp(min=1e-3)
            assert error < 2e-2, name


@pytest.mark.parametrize("name", huggingface.MODELS)
def test_every_op_runs_in_the_type_that_it_has_in_eager_pytorch(name: str) -> None:
    compare(huggingface.workload(name).on(CUDA), "cuda")


def test_a_region_inside_a_model_on_the_gpu() -> None:
    model, x = Mixed("cuda").cuda(), torch.randn(4, 6, device=CUDA)
    model.plain = model.plain.cuda()
    assert "bfloat16" in {value.dtype for op in ss.capture(model, (x,), loss=torch.sum).ops for value in op.values}


def test_a_batch_elsewhere_is_refused() -> None:
    with pytest.raises(ss.SoapstoneError, match="the model is on cuda:0, but tensor 0 of the batch on cpu"):
        ss.capture(Mixed().cuda(), (torch.randn(4, 6),), loss=torch.sum)
