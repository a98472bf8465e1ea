"""Make a rank's share of a model: check that the ranks agree, plan, and cut the weights."""

from __future__ import annotations

import os
from collections.abc import Sequence

import torch

from ..errors import RankError
from ..files import shortened, whole_number
from ..graph import OperatorGraph
from ..simulator import Simulation, Training, simulate
from ..strategy import Strategy
from ..topology import Topology
from ..tracing import Workload
from .agreement import agree, checksum
from .compiling import SEGMENT_BYTES
from .draws import CounterDraws, ReplayDraws
from .execute import Executor
from .faults import ON_NAN
from .parallel import Parallel
from .plan import Plan, open_connections
from .statistics import check_statistics
from .store import STORED, Store
from .takeover import Takeover, check_whole
from .transports import Transport, default_transport
from .weights import CHOICES, broadcast, is_meta, materialised, state_of


def parallelize(
    work: Workload,
    graph: OperatorGraph,
    topology: Topology,
    strategy: Strategy,
    *,
    training: Training = Training(),
    dropout: str = "counter",
    weights: str = "broadcast",
    ranks: Sequence[int] | None = None,
    device: torch.device | str | None = None,
    transport: Transport | None = None,
    compile: bool = False,
    cuda_graphs: bool = False,
    on_nan: str = "ignore",
    in_place: bool = True,
) -> Parallel:
    """Make this rank's part of a model under a strategy; every rank calls it. Parameters that this rank keeps whole and
    unsharded are the model's own tensors and are trained in place; the model's other parameters are freed. With
    `in_place=False` the model is left as it is, and its memory is needed in addition.

    Rank i is device i of the topology, unless `ranks` names the rank of each device; ranks beyond that are idle.
    Without a transport it is torch.distributed's default group. Tensors live on `device`, else where the model is; a
    model on the meta device gets its first values here, one shard at a time. Where weights differ, every rank gets
    rank 0's, or an error with `weights="verify"`. `dropout="replay"` draws torch's own masks, going on from its
    generator as it is now. `compile` runs segments through torch.compile, `cuda_graphs` launches each as one CUDA
    graph, from the second step on; what cannot runs as without it. `on_nan="stop"` raises on every rank where a loss is
    not finite; "skip" leaves buffers as they were and drops the gradients, so that an optimizer does nothing. Raises a
    SoapstoneError on every rank where any rank's arguments, plan or weights do not fit, before any tensor moves.
    """
    place = _place(work, device)
    transport = default_transport(place) if transport is None else transport
    size = transport.size

    def prepare() -> tuple[Simulation, list[int]]:
        _check_arguments(work, graph, dropout, weights)
        if on_nan not in ON_NAN:
            raise RankError(f"on_nan={on_nan!r} is not known; use {' or '.join(map(repr, ON_NAN))}")
        if cuda_graphs and place.type != "cuda":
            raise RankError(f"CUDA graphs are for ranks on GPUs, but these are on {place}; leave them out")
        if cuda_graphs and strategy.microbatches > 1:
            raise RankError("a CUDA graph has room for one microbatch; leave out CUDA graphs, or microbatches")
        chosen = _ranks(topology, ranks, size)
        check_whole(work.model)
        simulation = simulate(graph, topology, strategy, training=training)
        check_statistics(simulation)
        return simulation, chosen

    simulation, chosen = agree(transport, prepare)
    random_state = torch.get_rng_state()
    plan, seed = _common_plan(
        transport, simulation, work, place, dropout, weights, random_state, chosen, (compile, cuda_graphs)
    )
    mine = chosen.index(transport.rank) if transport.rank in chosen else -1

    def build() -> Parallel:
        values = materialised(work.model, seed) if is_meta(work.model) else state_of(work.model).items()
        store = Store(simulation, mine, values, place, takeover.is_granted)
        draws = (
            CounterDraws(seed, place)
            if dropout == "counter"
            else ReplayDraws(strategy.played, random_state, place, seed)
        )
        executor = Executor(plan, mine, chosen, store, transport, draws, place, compiled=compile, graphed=cuda_graphs)
        return Parallel(work, executor, store, transport, takeover, on_nan)

    takeover = Takeover(work.model, wanted=in_place)
    parallel = agree(transport, build)
    takeover.free(parallel._store, place)
    open_connections(plan, chosen, transport)
    return parallel


def _place(work: Workload, device: torch.device | str | None) -> torch.device:
    if device is not None:
        return torch.device(device)
    first = next(work.model.parameters(), torch.empty(0)).device
    if first.type != "meta":
        return first
    local = whole_number(text := os.environ.get("LOCAL_RANK", "0"))
    if local is None:
        raise RankError(f"LOCAL_RANK is {shortened(text)} in the environment, not a number; start this with torchrun")
    found = torch.cuda.device_count()
    return torch.device("cuda", local % found) if found else torch.device("cpu")


def _ranks(topology: Topology, given: Sequence[int] | None, size: int) -> list[int]:
    """The rank of each device."""
    count = topology.num_devices
    if given is None:
        if size != count:
            raise RankError(
                f"there are {size} ranks for {count} devices; start one rank a device (or, in Python, say ranks=)"
            )
        return list(range(count))
    ranks = list(given)
    if len(ranks) != count or len(set(ranks)) != count or not all(type(r) is int and 0 <= r < size for r in ranks):
        raise RankError(f"ranks={ranks} does not name one of {size} ranks for each of {count} devices, all different")
    return ranks


def _check_arguments(work: Workload, graph: OperatorGraph, dropout: str, weights: str) -> None:
    if dropout not in ("counter", "replay"):
        raise RankError(f"dropout={dropout!r} is not known; use 'counter' or 'replay'")
    if weights not in CHOICES:
        raise RankError(f"weights={weights!r} is not known; use {' or '.join(map(repr, CHOICES))}")
    if work.model.training != graph.settings.training:
        was, now = ("train", "eval") if graph.settings.training else ("eval", "train")
        raise RankError(f"the graph was captured in {was} mode, but the model is in {now} mode; call model.{was}()")
    state = state_of(work.model)
    for tensor in graph.tensors:
        if tensor.source not in STORED:
            continue
        found = state.get(tensor.name)
        if found is None or tuple(found.shape) != tensor.shape or found.dtype != getattr(torch, tensor.dtype):
            described = f"{tensor.dtype} tensor {tensor.name!r} of shape {list(tensor.shape)}"
            raise RankError(f"the model has no {described}, but the graph has; capture the model anew")
        if found._backward_hooks or getattr(found, "_post_accumulate_grad_hooks", None):
            raise RankError(
                f"the parameter {tensor.name!r} has a hook, which would see this rank's part of its gradient only; "
                "remove the hook, and change gradients of parallel.parameters() after a step"
            )
        if tensor.grad and not found.requires_grad:
            raise RankError(f"{tensor.name!r} was trained when the graph was captured, but is frozen now; capture anew")


def _common_plan(
    transport: Transport, simulation: Simulation, work: Workload, place: torch.device, dropout: str, weights: str,
    random_state: torch.Tensor, ranks: list[int], compiled: tuple[bool, bool],
) -> tuple[Plan, int]:  # fmt: skip
    """Rank 0's order and seed, once all ranks have shown that they have the same tasks, weights and random state."""
    meta = is_meta(work.model)
    facts = {
        "the plan": f"{simulation.fingerprint} {ranks}",
        "the dropout mode": dropout,
        "whether to compile": str(compiled),
        "whether to verify weights": weights,
        "the meta device": str(meta),
        "torch's random state": checksum({0: random_state}) if dropout == "replay" else "",
        "the initial weights": "" if meta else checksum(state_of(work.model)),
    }
    first = transport.rank == 0
    rows = simulation.order
    most_bytes = SEGMENT_BYTES if any(compiled) else None
    plan = Plan(simulation, rows, transport.size, most_bytes=most_bytes) if first else None
    mine = (facts, (rows, plan.order, torch.initial_seed()) if plan is not None else None)
    everyone = transport.exchange(mine)
    for rank, (found, _) in enumerate(everyone):
        for what, value in found.items():
            if value == everyone[0][0][what]:
                continue
            if what == "the initial weights" and weights == "broadcast":
                continue
            raise RankError(f"ranks 0 and {rank} disagree on {what}; {_REMEDIES[what]}")
    if len({found["the initial weights"] for found, _ in everyone}) > 1:
        broadcast(transport, work.model, place)
    rows, order, seed = everyone[0][1]
    return plan or Plan(simulation, rows, transport.size, order, most_bytes=most_bytes), int(seed) & (2**63 - 1)


_SEED = "call torch.manual_seed with the same number on every rank before making the model"
_REMEDIES = {
    "the plan": "give every rank the same graph, topology, strategy and ranks",
    "the dropout mode": "pass the same dropout= on every rank",
    "whether to compile": "pass the same compile= and cuda_graphs= on every rank",
    "whether to verify weights": "pass the same weights= on every rank",
    "the meta device": "build the model on the same kind of device on every rank",
    "the initial weights": f"{_SEED}, load the same checkpoint, or pass weights='broadcast'",
    "torch's random state": f"{_SEED}, and draw the same numbers since",
}
