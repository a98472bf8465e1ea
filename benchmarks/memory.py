"""The predicted peak of memory against what a GPU's allocator saw, one device.

`python -m benchmarks.memory [MODEL ...]` reads benchmarks/data/memory_h200.json; no GPU is needed."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import soapstone as ss
from soapstone.loading import Request, load_graph

DATA = Path(__file__).parent / "data" / "memory_h200.json"


def predicted(model: str, dtype: str, batch: int) -> ss.Simulation:
    """A step with AdamW on one H200."""
    graph, topology = load_graph(Request(model, batch, dtype=dtype)), ss.Topology.parse("h200:1x1")
    strategy = ss.baselines.data_parallel(graph, topology)
    return ss.simulate(graph, topology, strategy, training=ss.Training(optimizer="adamw"))


def main(models: list[str]) -> None:
    measured = json.loads(DATA.read_text())
    print(f"peak memory, {measured['machine']}, torch {measured['torch']}, {measured['date']}")
    print(f"{'model':<14}{'dtype':<10}{'batch':>5}{'predicted':>13}{'measured':>13}{'ratio':>8}  most of it, GB")
    for model, dtype, batch, size in measured["rows"]:
        if models and model not in models:
            continue
        full = predicted(model, dtype, batch).fullest
        most = ", ".join(f"{kind} {n / 1e9:.2f}" for kind, n in list(full.kinds.items())[:4])
        sizes = f"{full.peak / 1e9:>10.3f} GB{size / 1e9:>10.3f} GB{full.peak / size:>8.3f}"
        print(f"{model:<14}{dtype:<10}{batch:>5}{sizes}  {most}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
