"""A GPT-2 from Hugging Face, unmodified and with its own loss: plan it for four GPUs, then train it on two CPU ranks.

python examples/huggingface.py
"""

from typing import Any

import torch
from transformers import GPT2Config, GPT2LMHeadModel

import soapstone as ss

BATCH, LENGTH, VOCAB, STEPS = 8, 32, 5000, 3


def workload() -> ss.Workload:
    """Random weights: nothing is downloaded. The model computes its own loss from `labels`, so none is given here."""
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=VOCAB, n_positions=LENGTH, n_embd=256, n_layer=2, n_head=4, bos_token_id=0, eos_token_id=1
    )
    model = GPT2LMHeadModel(config)
    tokens = torch.randint(0, VOCAB, (BATCH, LENGTH))
    return ss.Workload(model, (), kwargs={"input_ids": tokens, "labels": tokens})


def plan(graph: ss.OperatorGraph) -> None:
    topology = ss.Topology.parse("a100:1x4")
    found = ss.search(graph, topology, proposals=500)
    data = ss.simulate(graph, topology, ss.baselines.data_parallel(graph, topology))
    print(f"{len(graph.ops)} ops; {', '.join(graph.unruled) or 'none'} without a rule")
    print(f"on four A100s: {found.makespan * 1e6:.0f} us a step, data parallelism {data.makespan * 1e6:.0f} us")


def train(graph: ss.OperatorGraph) -> list[float]:
    """Losses of a few steps on two ranks. They are threads here, to try things in one process; see own_cnn.py for
    processes."""
    topology = ss.Topology.parse("cpu:1x2")
    strategy = ss.search(graph, topology, proposals=500).strategy
    works = [workload(), workload()]  # a model for each rank

    def run(rank: int, transport: Any) -> list[float]:
        work = works[rank]
        parallel = ss.parallelize(work, graph, topology, strategy, transport=transport)
        optimizer = torch.optim.AdamW(parallel.parameters(), lr=1e-3)
        losses = []
        for _ in range(STEPS):
            losses.append(parallel.step(*work.batch).item())
            optimizer.step()
        return losses

    losses: list[float] = ss.run_threads(2, run)[0]
    return losses


if __name__ == "__main__":
    captured = ss.capture(workload())
    plan(captured)
    for step, loss in enumerate(train(captured)):
        print(f"step {step}: loss {loss:.4f}")
