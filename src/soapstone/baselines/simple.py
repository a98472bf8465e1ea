"""Data and model parallelism, and random strategies."""

from __future__ import annotations

import random as _random
from math import prod

from ..errors import StrategyError
from ..graph import Dim, Op, OperatorGraph
from ..strategy import Configuration, Strategy
from ..topology import Topology
from .checkpoints import with_model_checkpoints


def sample_dim(op: Op) -> Dim | None:
    """The dim that data parallelism splits. Where samples and positions are one axis, as in the loss of a language
    model that is given all tokens in a row, samples are the outer part of it."""
    dims = [dim for dim in op.dims if dim.splittable and (dim.kind == "sample" or dim.name == "sample")]
    return min(dims, key=lambda dim: dim.kind != "sample", default=None)


@with_model_checkpoints
def data_parallel(graph: OperatorGraph, topology: Topology) -> Strategy:
    """Split every op by sample over all devices; an op with fewer samples, or none, uses fewer devices."""

    def configure(op: Op) -> Configuration:
        dim = sample_dim(op)
        if dim is None:
            return Configuration()
        degree = min(dim.size, topology.num_devices)
        return Configuration({dim.name: degree}, tuple(range(degree)))

    return Strategy(graph, topology, {op.name: configure(op) for op in graph.ops})


def weighty_layers(graph: OperatorGraph) -> list[list[Op]]:
    """Layers that have parameters, such as all steps of a recurrent one, each with what computes on after it."""
    found: dict[str, list[Op]] = {}
    layer = graph.ops[0].layer
    for op in graph.ops:
        layer = op.layer if op.parameters else layer
        found.setdefault(layer, []).append(op)
    return list(found.values())


@with_model_checkpoints
def model_parallel(graph: OperatorGraph, topology: Topology) -> Strategy:
    """Every layer whole on one device, neighbours together, so that the devices have about the same flops."""
    work: dict[str, int] = {}
    for op in graph.ops:
        work[op.layer] = work.get(op.layer, 0) + op.flops
    total, before = max(sum(work.values()), 1), 0
    device_of = {}
    for layer, flops in work.items():
        middle = before + flops / 2
        device_of[layer] = min(int(middle * topology.num_devices / total), topology.num_devices - 1)
        before += flops
    return Strategy(graph, topology, {op.name: Configuration({}, (device_of[op.layer],)) for op in graph.ops})


def random(graph: OperatorGraph, topology: Topology, *, seed: int = 0, max_parts: int | None = None) -> Strategy:
    """Any legal degrees and any devices, parts sharing devices included; at most twice as many parts as devices
    unless `max_parts` says otherwise."""
    if max_parts is not None and (type(max_parts) is not int or max_parts < 1):
        raise StrategyError(f"max_parts={max_parts!r} is not a number of parts; use 1 or more")
    generator = _random.Random(seed)
    most = 2 * topology.num_devices if max_parts is None else max_parts

    def configure(op: Op) -> Configuration:
        degrees: dict[str, int] = {}
        dims = [d for d in op.dims if d.splittable]
        generator.shuffle(dims)
        for dim in dims:
            room = min(dim.size, most // prod(degrees.values()))
            if room > 1 and generator.random() < 0.6:
                degrees[dim.name] = generator.randint(1, room)
        pool = generator.sample(range(topology.num_devices), generator.randint(1, topology.num_devices))
        return Configuration(degrees, tuple(generator.choice(pool) for _ in range(prod(degrees.values()))))

    return Strategy(graph, topology, {op.name: configure(op) for op in graph.ops})
