"""One NCCL rank of the tests: train every model under random strategies and hold it against one device.

python -m tests.gpu.worker FOLDER SEEDS   (started by `ranks` in conftest.py; wanted.pt is there, rank*.json is written)
"""

from __future__ import annotations

import json
import sys
import traceback
from functools import cache
from pathlib import Path

import torch

import soapstone as ss
from soapstone.runtime import Transport
from soapstone.runtime.transports import joined
from tests.training import SEED, Record, assert_same, train_rank

from .models import MODELS, batches


@cache
def captured(name: str) -> ss.OperatorGraph:
    return ss.capture(MODELS[name]())


def check(name: str, seed: int, transport: Transport, place: torch.device, wanted: Record) -> None:
    graph = captured(name)
    topology = ss.Topology.parse(f"h200:1x{transport.size}")
    strategy = ss.baselines.random(graph, topology, seed=seed)
    work = MODELS[name]()
    given = batches(name, work)
    torch.manual_seed(SEED)
    found = train_rank(work.on(place), graph, strategy, transport, given)
    assert_same(on_cpu(found), wanted)


def on_cpu(record: Record) -> Record:
    losses, state = [loss.cpu() for loss in record.losses], {n: t.cpu() for n, t in record.state.items()}
    return Record(losses, [{n: t.cpu() for n, t in step.items()} for step in record.gradients], state)


def main(folder: Path, seeds: int) -> None:
    wanted = torch.load(folder / "wanted.pt", weights_only=False)
    torch.backends.cudnn.allow_tf32 = False
    outcomes: dict[str, str] = {}
    with joined("pytest tests/gpu") as (transport, place):
        for name in MODELS:
            for seed in range(seeds):
                try:
                    check(name, seed, transport, place, wanted[name])
                    outcomes[f"{name} {seed}"] = ""
                except AssertionError:
                    outcomes[f"{name} {seed}"] = traceback.format_exc()
                (folder / f"rank{transport.rank}.json").write_text(json.dumps(outcomes))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
