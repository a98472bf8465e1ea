"""torch.utils.checkpoint in a model is read as recomputation of the ops inside."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import soapstone as ss
from soapstone.runtime.transports import run_threads
from tests.support.training import train_plain, train_rank


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(8), nn.Linear(8, 32), nn.Linear(32, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = x + self.down(torch.tanh(self.up(self.norm(x))))
        return found


class Checkpointed(nn.Module):
    """Blocks that are checkpointed one by one, but for the last."""

    def __init__(self, reentrant: bool | None) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(3))
        self.head = nn.Linear(8, 4)
        self.checkpoint = partial(checkpoint, use_reentrant=reentrant)  # bound before anyone captures
        self.reentrant = reentrant

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks[:-1]:
            x = block(x) if self.reentrant is None else self.checkpoint(block, x)
        found: torch.Tensor = self.head(self.blocks[-1](x))
        return found


def workload(reentrant: bool | None) -> ss.Workload:
    torch.manual_seed(0)
    batch = torch.randn(512, 8, dtype=torch.float64), torch.randn(512, 4, dtype=torch.float64)
    model = Checkpointed(reentrant).double()
    return ss.Workload(model, batch[:1], loss=nn.functional.mse_loss, targets=batch[1:])


@pytest.mark.parametrize("reentrant", [False, True])
def test_all_inside_but_what_is_read_outside_is_recomputed(reentrant: bool) -> None:
    graph = ss.capture(workload(reentrant))
    marked = {op.name for op in graph.ops if op.recompute}
    assert marked == {f"blocks.{i}.{name}" for i in (0, 1) for name in ("norm", "up")}
    assert ss.OperatorGraph.from_data(graph.to_data(), "here").fingerprint == graph.fingerprint
    assert [op.name for op in graph.ops] == [op.name for op in ss.capture(workload(None)).ops]
    after = torch.utils.checkpoint._checkpoint_without_reentrant_generator, torch.utils.checkpoint.CheckpointFunction
    assert [each.__module__ for each in after] == ["torch.utils.checkpoint"] * 2  # as before


def test_baselines_and_predictions_follow_the_model() -> None:
    graph, plain = ss.capture(workload(False)), ss.capture(workload(None))
    topology = ss.Topology.parse("p100:1x2")
    for name, baseline in ss.baselines.BASELINES.items():
        found = baseline(graph, topology)
        assert all(found[op.name].recompute == op.recompute for op in graph.ops), name
    sims = [ss.simulate(each, topology, ss.baselines.data_parallel(each, topology)) for each in (graph, plain)]
    assert sims[0].fullest.peak < sims[1].fullest.peak
    assert sims[0].makespan > sims[1].makespan


def test_a_search_keeps_what_there_is_room_for() -> None:
    graph, topology = ss.capture(workload(False)), ss.Topology.parse("p100:1x2")
    for recompute in (True, False):
        found = ss.search(graph, topology, budget=None, proposals=50, recompute=recompute).strategy
        assert not any(found[op.name].recompute for op in graph.ops)


def test_it_trains_like_the_model_itself() -> None:
    graph, topology = ss.capture(workload(False)), ss.Topology.parse("cpu:1x2")
    batches = [workload(False).batch] * 2
    wanted = train_plain(workload(False), batches)
    strategy = ss.baselines.fsdp(graph, topology)
    works = [workload(False) for _ in range(2)]
    for record in run_threads(2, lambda i, t: train_rank(works[i], graph, strategy, t, batches), strict=True):
        for ours, theirs in zip(record.losses, wanted.losses):
            torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=0)


def test_hugging_faces_gradient_checkpointing() -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(n_layer=2, n_embd=16, n_head=2, vocab_size=32, n_positions=16, use_cache=False)
    model = transformers.GPT2LMHeadModel(config).train()
    model.gradient_checkpointing_enable()
    tokens = torch.randint(0, 32, (4, 8))
    graph = ss.capture(model, (tokens,), loss=lambda out, y: nn.functional.cross_entropy(
        out.logits.flatten(0, 1), y.flatten()), targets=(tokens,))  # fmt: skip
    marked = [op.name for op in graph.ops if op.recompute]
    assert any(".h.0." in name for name in marked)
    assert any(".h.1." in name for name in marked)
    assert not any("lm_head" in name or "wte" in name for name in marked)
