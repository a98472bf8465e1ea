"""Training steps that race: one rank's share under a strategy, and DistributedDataParallel's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import replace

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from ..costs import Costs, OpTimes
from ..errors import RankError
from ..graph import OperatorGraph
from ..runtime import Transport, parallelize
from ..runtime.agreement import agree
from ..runtime.optimizers import torch_optimizer
from ..simulator import Training
from ..strategy import Strategy
from ..tracing import Workload
from ..tracing.precision import eager_loss

RATE = 1e-3  # the learning rate, which changes no time
Step = Callable[[], object]


class UncountedCosts(Costs):
    """For ranks that only need the tasks of a strategy: the order in which they run is rank 0's."""

    def times(self, graph: OperatorGraph, index: int, extents: tuple[int, ...], kind: str, combines: bool) -> OpTimes:
        return OpTimes(1, 1)

    def update(self, device_kind: str, optimizer: str) -> tuple[int, float]:
        return 0, 0.0


def our_step(
    work: Workload, graph: OperatorGraph, strategy: Strategy, *, training: Training, transport: Transport,
    place: torch.device, peak: int = 0, cuda_graphs: bool = False,
) -> Step:  # fmt: skip
    """A step of this rank under a strategy; every rank calls it. Raises a SoapstoneError on all of them where one
    cannot make its share, or has not so many bytes of its GPU left."""
    if transport.rank != 0:
        training = replace(training, costs=UncountedCosts())
    agree(transport, lambda: _check_memory(place, peak))
    parallel = parallelize(
        work, graph, strategy.topology, strategy, training=training, transport=transport, device=place,
        cuda_graphs=cuda_graphs, in_place=False,
    )  # fmt: skip
    optimizer = torch_optimizer(training.optimizer, parallel.parameters(), RATE)

    def step() -> None:
        parallel.step(*work.batch)
        optimizer.step()

    return step


def _check_memory(place: torch.device, needed: int) -> None:
    """Raise RankError unless a GPU has so much left: out of memory in the middle of a step, a rank would leave the
    others waiting for its messages."""
    if place.type != "cuda" or needed <= 0:
        return
    try:
        torch.empty(needed, dtype=torch.uint8, device=place)
    except torch.OutOfMemoryError:
        raise RankError(f"its step needs {needed / 2**30:.1f} GiB, which {place} has not left") from None


def can_run_ddp(graph: OperatorGraph, transport: Transport) -> bool:
    """Whether there are ranks of torch.distributed, and samples for each of them."""
    if not dist.is_available() or not dist.is_initialized() or dist.get_world_size() != transport.size:
        return False
    shapes = [graph.tensors[i].shape for i in graph.inputs]
    sizes = [shape[axis] for shape, axis in zip(shapes, graph.settings.batch_dims) if axis is not None]
    return bool(sizes) and min(sizes) >= transport.size


def ddp_step(
    work: Workload, *, optimizer: str = "sgd", batch_dims: Sequence[int | None] | None = None, precision: str = ""
) -> Step:
    """A step of DistributedDataParallel on this rank's share of the batch, as it is by default: each rank has the batch
    norm of its own samples. The workload's model stays as it is."""
    rank, size = dist.get_rank(), dist.get_world_size()
    dims = [0] * len(work.batch) if batch_dims is None else batch_dims
    local = [t if axis is None else t.tensor_split(size, axis)[rank] for t, axis in zip(work.batch, dims)]
    model = DistributedDataParallel(deepcopy(work.model))
    updates = torch_optimizer(optimizer, model.parameters(), RATE)

    def step() -> None:
        updates.zero_grad()
        loss = eager_loss(work, tuple(local), precision, model)
        loss.backward()  # type: ignore[no-untyped-call]
        updates.step()

    return step
