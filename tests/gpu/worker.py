"""One NCCL rank of the tests: train every model under random strategies and hold it against one device.

python -m tests.gpu.worker FOLDER SEEDS   (started by `ranks` in conftest.py; wanted.pt is there, rank*.json is written)
"""

from __future__ import annotations

import json
import sys
import traceback
from collections.abc import Callable
from functools import cache
from pathlib import Path

import torch

import soapstone as ss
from soapstone.runtime import Transport
from soapstone.runtime.transports import joined
from tests.support.microbatches import counts_of, microbatched, train_accumulating
from tests.support.models import CASES
from tests.support.shapes import some_batches
from tests.support.sharding import recomputed, sharded
from tests.support.training import SEED, STEPS, Batches, Record, assert_same, train_plain, train_rank

from .models import MODELS, batches


@cache
def captured(name: str) -> ss.OperatorGraph:
    return ss.capture(MODELS[name]())


def whole(graph: ss.OperatorGraph, topology: ss.Topology) -> ss.Strategy:
    """Every op on the first device, in one part: batch norm changes its running statistics in place then."""
    return ss.Strategy(graph, topology, {op.name: ss.Configuration({}, (0,)) for op in graph.ops})


def check(
    name: str, seed: int | None, transport: Transport, place: torch.device, wanted: Record, cuda_graphs: bool = False
) -> None:
    graph = captured(name)
    topology = ss.Topology.parse(f"h200:1x{transport.size}")
    chosen = ss.baselines.random(graph, topology, seed=seed) if seed is not None else whole(graph, topology)
    strategy = sharded(chosen, seed or 0)
    work = MODELS[name]()
    given = batches(name, work)
    torch.manual_seed(SEED)
    found = train_rank(work.on(place), graph, strategy, transport, given, cuda_graphs=cuda_graphs)
    assert_same(on_cpu(found), wanted)


def check_clipping_and_evaluation(name: str, transport: Transport, place: torch.device) -> None:
    """A clipped step, and the model's output after it, against plain PyTorch on the CPU."""
    graph, topology, (batch,) = captured(name), ss.Topology.parse(f"h200:1x{transport.size}"), CASES[name].batches(1)
    strategy = sharded(ss.baselines.random(graph, topology, seed=0), 0)
    plain = CASES[name].workload()
    work = MODELS[name]().on(place)
    torch.manual_seed(SEED)
    parallel = ss.parallelize(work, graph, topology, strategy, transport=transport, dropout="replay")
    ours, theirs = (torch.optim.SGD(each.parameters(), lr=0.1) for each in (parallel, plain.model))
    parallel.step(*batch)
    torch.manual_seed(SEED)
    plain.compute_loss(*batch).backward()  # type: ignore[no-untyped-call]
    wanted = torch.nn.utils.clip_grad_norm_(plain.model.parameters(), 1e-3)
    torch.testing.assert_close(parallel.clip_grad_norm_(1e-3).cpu(), wanted, rtol=1e-9, atol=0)
    ours.step()
    theirs.step()
    output = plain.model.eval()(*batch[:1])
    torch.testing.assert_close(parallel.evaluate(*batch[:1]).cpu(), output, rtol=1e-9, atol=1e-12)


def check_microbatches(name: str, transport: Transport, place: torch.device) -> None:
    """Microbatches under a random strategy, sharded and recomputed, against slice after slice on the CPU."""
    graph, topology, given = captured(name), ss.Topology.parse(f"h200:1x{transport.size}"), CASES[name].batches(STEPS)
    count = counts_of(graph)[-1]
    strategy = recomputed(sharded(microbatched(graph, topology, count, transport.size), 1), 1)
    wanted = train_accumulating(CASES[name].workload(), graph, given, count)
    torch.manual_seed(SEED)
    found = train_rank(MODELS[name]().on(place), graph, strategy, transport, batches_on(given, place))
    assert_same(on_cpu(found), wanted)


def check_shapes(name: str, transport: Transport, place: torch.device) -> None:
    """Whole batches of other shapes under a random strategy, against plain PyTorch on the CPU."""
    graph, topology, given = captured(name), ss.Topology.parse(f"h200:1x{transport.size}"), some_batches(name)
    strategy = ss.baselines.random(graph, topology, seed=3)
    wanted = train_plain(CASES[name].workload(), given)
    torch.manual_seed(SEED)
    found = train_rank(MODELS[name]().on(place), graph, strategy, transport, batches_on(given, place))
    assert_same(on_cpu(found), wanted)


def batches_on(given: Batches, place: torch.device) -> Batches:
    return [tuple(tensor.to(place) for tensor in batch) for batch in given]


def on_cpu(record: Record) -> Record:
    losses, state = [loss.cpu() for loss in record.losses], {n: t.cpu() for n, t in record.state.items()}
    return Record(losses, [{n: t.cpu() for n, t in step.items()} for step in record.gradients], state)


def main(folder: Path, seeds: int) -> None:
    wanted = torch.load(folder / "wanted.pt", weights_only=False)
    torch.backends.cudnn.allow_tf32 = False
    outcomes: dict[str, str] = {}
    with joined("pytest tests/gpu") as (transport, place):

        def note(case: str, act: Callable[..., None], *arguments: object) -> None:
            outcomes[case] = ""
            try:
                act(*arguments)
            except Exception as error:
                outcomes[case] = traceback.format_exc()
                if not isinstance(error, AssertionError):  # the ranks are no longer in step
                    raise
            finally:
                (folder / f"rank{transport.rank}.json").write_text(json.dumps(outcomes))

        for name in CASES:
            note(f"{name} clipped", check_clipping_and_evaluation, name, transport, place)
            note(f"{name} microbatches", check_microbatches, name, transport, place)
            note(f"{name} other shapes", check_shapes, name, transport, place)
            note(f"{name} graphed", check, name, 1, transport, place, wanted[name], True)
            note(f"{name} graphed whole", check, name, None, transport, place, wanted[name], True)
        for name in MODELS:
            for seed in range(seeds):
                note(f"{name} {seed}", check, name, seed, transport, place, wanted[name])


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
