"""Parameters that stay float32 while the model computes in bfloat16."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import soapstone as ss
from soapstone.runtime.transports import alone
from soapstone.tracing.precision import eager_loss
from tests.support.seeds import cases
from tests.support.training import train_threads

pytest.importorskip("transformers")
from tests.support import huggingface

pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")  # of DeBERTa's
# Products by groups ask for rows of 16 bytes on a CPU, which these small models do not have.
GROUPS = {"mixtral", "qwen2_moe", "deepseek_v3", "gpt_oss"}
TRAINED = [name for name in huggingface.MODELS if name not in GROUPS | {"wav2vec2"}]


def still(name: str) -> ss.Workload:
    return huggingface.still(huggingface.workload(name))


@pytest.mark.parametrize("name", cases(TRAINED, long=set(TRAINED) - {"bert", "llama", "convnext"}))
def test_mixed_precision_computes_what_plain_pytorch_does_with_cast_parameters(name: str) -> None:
    work = still(name)
    wanted = eager_loss(work, work.batch, "mixed")
    wanted.backward()  # type: ignore[no-untyped-call]
    graph = ss.capture(still(name), precision="mixed")
    assert {parameter.dtype for parameter in graph.parameters} == {"float32"}
    strategy = ss.baselines.data_parallel(graph, ss.Topology.parse("cpu:1x2"))
    for found in train_threads(lambda: still(name), graph, strategy, [work.batch]):
        assert torch.allclose(found.losses[0], wanted, rtol=1e-2)  # some models have their loss in bfloat16
        error = size = 0.0
        for parameter, weight in work.model.named_parameters():
            if weight.grad is not None:
                assert found.gradients[0][parameter].dtype == torch.float32
                error += float((found.gradients[0][parameter] - weight.grad).norm() ** 2)
                size += float(weight.grad.norm() ** 2)
        assert error < 4e-4 * size


class Rotating(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.turn, self.norm = nn.Linear(6, 6), nn.BatchNorm1d(6)
        self.speed = nn.Buffer(torch.arange(6) / 7)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        angle = x.new_ones(len(x), 1, dtype=torch.float32) * self.speed
        y: torch.Tensor = self.norm(self.turn(x) * angle.cos().to(x.dtype))
        return y


def types_of(graph: ss.OperatorGraph, kind: str) -> list[str]:
    return [op.values[step.outputs[0]].dtype for op in graph.ops for step in op.steps if step.kind == kind]


def test_buffers_keep_their_types() -> None:
    graph = ss.capture(Rotating().eval(), (torch.randn(4, 6),), loss=torch.sum, precision="mixed")
    assert types_of(graph, "cos") == ["float32"]
    assert types_of(graph, "linear") == ["bfloat16"]


class Placed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(6, 6), nn.Linear(6, 6)
        self.places = nn.Buffer(torch.randn(6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.last(self.first(x) + self.places)
        return y


def test_a_buffer_that_meets_the_computed_type_is_refused() -> None:
    with pytest.raises(ss.SoapstoneError, match="linear in module 'last' is given both bfloat16 and float32"):
        ss.capture(Placed(), (torch.randn(4, 6),), loss=torch.sum, precision="mixed")


@pytest.mark.parametrize("precision", ["mixed", "autocast:cpu"])
def test_precision_is_part_of_evaluation(precision: str) -> None:
    def work() -> ss.Workload:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
        return ss.Workload(
            model, (torch.randn(4, 6),), loss=nn.functional.cross_entropy, targets=(torch.arange(4) % 3,)
        )

    graph, topology = ss.capture(work(), precision=precision), ss.Topology.parse("cpu:1x1")
    strategy = ss.baselines.data_parallel(graph, topology)
    parallel = ss.parallelize(work(), graph, topology, strategy, transport=alone())
    assert parallel.evaluate(work().batch[0]).dtype == torch.bfloat16
