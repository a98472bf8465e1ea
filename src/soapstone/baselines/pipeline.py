"""Stages one after the other, with microbatches between them: 1F1B (Narayanan et al., 2019), and inside of a stage data
and tensor parallelism, as in Megatron-LM (Narayanan et al., 2021)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate

from ..errors import StrategyError
from ..graph import OperatorGraph
from ..strategy import Configuration, Strategy
from ..topology import Topology
from .checkpoints import with_model_checkpoints
from .expert import tensor_parallel
from .simple import data_parallel, weighty_layers

Work = Sequence[float]  # by op
NEAR = 0.25  # of a stage's work: how far a cut may lie from where stages would have the same
USUAL, MOST = 4, 8  # microbatches for each stage


@with_model_checkpoints
def pipeline(graph: OperatorGraph, topology: Topology) -> Strategy:
    """A stage for each device, or for each few that share its samples where there are more devices than layers; with
    as many microbatches as are usual, or one where the batch cannot be cut."""
    usual = USUAL * _most_stages(graph, topology)
    return [each for each in pipelines(graph, topology) if each.microbatches <= usual][-1]


def pipelines(graph: OperatorGraph, topology: Topology, work: Work | None = None) -> list[Strategy]:
    """The same with one microbatch, and with more and more of them."""
    stages = _most_stages(graph, topology)
    replicas = topology.num_devices // stages
    found = [grid(graph, topology, (replicas, 1, stages), 1, work)]
    for count in _microbatch_counts(graph, stages, replicas):
        try:
            found.append(grid(graph, topology, (replicas, 1, stages), count, work))
        except StrategyError:  # samples meet
            break
    return found


def _most_stages(graph: OperatorGraph, topology: Topology) -> int:
    """Of equally many devices, each with a layer that has parameters at least."""
    layers, count = len(weighty_layers(graph)), topology.num_devices
    return max(stages for stages in range(1, count + 1) if count % stages == 0 and stages <= max(layers, 1))


def _microbatch_counts(graph: OperatorGraph, stages: int, replicas: int) -> list[int]:
    """Of at least a sample for each replica, and a few for each stage."""
    samples = graph.num_samples
    most = min(MOST * stages, samples // replicas) if stages > 1 else 1
    return [count for count in range(max(2, stages // 2), most + 1) if samples % count == 0]


def grid(
    graph: OperatorGraph, topology: Topology, sizes: tuple[int, int, int], microbatches: int, work: Work | None = None
) -> Strategy:
    """Replicas x tensor parallelism x stages: devices next to one another share products, then samples, and a stage
    comes after the other; `work` is what each op takes, its flops by default. Raises StrategyError where these are not
    all devices, or the batch cannot be cut so."""
    replicas, width, stages = sizes
    if replicas * width * stages != topology.num_devices:
        product = f"{replicas} x {width} x {stages}"
        raise StrategyError(f"{product} are not the {topology.num_devices} devices of the topology; use all of them")
    each = replicas * width
    whole = dict.fromkeys([op.name for op in graph.ops], Configuration())
    played = Strategy(graph, topology, whole, microbatches).played
    inside = Topology.parse(f"cpu:{replicas}x{width}")  # baselines ask no more of a topology
    made = tensor_parallel(played, inside, width) if width > 1 else data_parallel(played, inside)
    found = {}
    for op, stage in zip(graph.ops, stages_of(graph, stages, work)):
        devices = tuple(stage * each + device for device in made[op.name].devices)
        in_flight = stages - stage if microbatches > 1 else None
        again = made[op.name].recompute or op.recompute
        found[op.name] = replace(made[op.name], devices=devices, in_flight=in_flight, recompute=again)
    return Strategy(graph, topology, found, microbatches)


def is_grid(name: str) -> bool:
    """Whether a name such as "dp2-tp4-pp2-m16" stands for a grid."""
    parts = [re.fullmatch(r"(dp|tp|pp|m)[1-9]\d{0,5}", part) for part in name.split("-")]
    return all(parts) and len({part[1] for part in parts if part}) == len(parts)


def named_grid(name: str, graph: OperatorGraph, topology: Topology) -> Strategy:
    """What is not named is 1."""
    parts = {label: int(number) for label, number in re.findall(r"([a-z]+)(\d+)", name)}
    sizes = (parts.get("dp", 1), parts.get("tp", 1), parts.get("pp", 1))
    return grid(graph, topology, sizes, parts.get("m", 1))


def stages_of(graph: OperatorGraph, count: int, taken: Work | None = None) -> list[int]:
    """The stage of each op: cut where stages have about the same work, and where few bytes pass."""
    work = list(accumulate([max(op.flops, 1) for op in graph.ops] if taken is None else taken))
    passing = _passing(graph)
    cuts: list[int] = []
    for stage in range(1, count):
        wanted, margin = work[-1] * stage / count, NEAR * work[-1] / count
        near = [i for i, done in enumerate(work[:-1]) if abs(done - wanted) <= margin and i > max(cuts, default=-1)]
        nearest = [min(range(len(work)), key=lambda i: abs(work[i] - wanted))]
        cuts.append(min(near or nearest, key=lambda i: (passing[i], abs(work[i] - wanted))))
    return [sum(cut < i for cut in cuts) for i in range(len(graph.ops))]


def _passing(graph: OperatorGraph) -> list[int]:
    """Bytes that are made up to each op and read after it."""
    last = {operand.tensor: i for i, op in enumerate(graph.ops) for operand in op.inputs}
    change = [0] * (len(graph.ops) + 1)
    for tensor, maker in graph.producer.items():
        if last.get(tensor, -1) > maker:
            change[maker] += graph.tensors[tensor].bytes
            change[last[tensor]] -= graph.tensors[tensor].bytes
    return list(accumulate(change))
