"""Random walks over strategies, as a search makes them, and what every engine says of each step."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from itertools import pairwise
from math import log

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

import soapstone as ss
from soapstone.costs import OpTimes
from soapstone.graph import OperatorGraph
from soapstone.simulator import ENGINES, states_of, temporaries_of
from soapstone.strategy import SHARDS
from soapstone.topology import Bus, Sum

from .models import CASES

Changes = dict[str, ss.Configuration]
Timeline = tuple[np.ndarray, ...]  # key, ready, end by (ready, key)

# Models of the zoo, cut down so that random strategies stay small.
SMALL = {
    "lenet": {"batch": 8},
    "inception-v3": {"batch": 8, "image": 75, "divide": 8},
    "resnet-101": {"batch": 8, "image": 64, "blocks": (1, 1, 1, 1), "width": 8},
    "rnntc": {"batch": 8, "length": 3, "hidden": 16, "layers": 2, "vocab": 50},
    "rnnlm": {"batch": 8, "length": 4, "hidden": 16, "layers": 2, "vocab": 50},
    "nmt": {"batch": 8, "length": 3, "hidden": 16, "layers": 1, "vocab": 50},
    "gpt2": {"batch": 8, "length": 16, "width": 16, "heads": 4, "layers": 2, "vocab": 64},
    "vit": {"batch": 8, "image": 32, "patch": 16, "width": 16, "heads": 4, "layers": 1, "classes": 10},
}


class Crop(nn.Module):
    """Parts that nobody reads, parts that read nothing of an input, a tensor read twice, and a dead end."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 12), nn.Linear(8, 8)
        self.aside = nn.Linear(12, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide = torch.relu(self.first(x))
        aside = self.aside(wide.detach())
        narrow = self.second(wide[:, 2:10])
        return torch.cat([narrow * narrow, wide[:, :3], aside.detach()], 1).tanh()


class Shared(nn.Module):
    """A table of which some rows are read with a gradient and all without, so that a device may update what no gradient
    reaches."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.ones(12, 6))
        self.last = nn.Linear(6, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.last(F.linear(x, self.table[:6]))
        return y + (x @ self.table.detach().t()).sum() * 1e-3


@cache
def graph_of(name: str) -> OperatorGraph:
    if name in CASES:
        return ss.capture(CASES[name].workload())
    if name == "crop":
        return ss.capture(ss.Workload(Crop(), (torch.zeros(8, 6),), loss=torch.sum))
    if name == "shared":
        return ss.capture(ss.Workload(Shared(), (torch.zeros(8, 6),), loss=torch.sum))
    return ss.capture(ss.zoo.load(name, **SMALL[name]))  # type: ignore[arg-type]


@cache
def configurations(name: str, text: str) -> dict[str, list[ss.Configuration]]:
    graph = graph_of(name)
    space = ss.Space(graph, ss.Topology.parse(text))
    return {op.name: space.configurations(op.name) for op in graph.ops}


class Launching(ss.AnalyticCosts):
    """Devices with hosts, which take about `share` of an op's own time to launch it: more for some ops than for others,
    and less in backward, so that some tasks wait for their hosts and others do not. Without a share
    hosts take no time."""

    def __init__(self, share: float) -> None:
        self.share = share

    def times(
        self, graph: OperatorGraph, index: int, extents: tuple[int, ...], device_kind: str, combines: bool
    ) -> OpTimes:
        found = super().times(graph, index, extents, device_kind, combines)
        share = self.share * (0.5 + len(graph.ops[index].name) * 37 % 97 / 97)
        return replace(
            found,
            launch_forward=int(share * found.forward),
            launch_backward=int(share / 2 * found.backward),
            launch_finish_forward=int(share * found.finish_forward),
            launch_finish_backward=int(share * found.finish_backward),
        )


def with_hosts(topology: ss.Topology, ns: int) -> ss.Topology:
    """The same as if it had been measured: about so many nanoseconds of an end's thread go into each message, sums are
    copied first, links and sums go by curves, and links share two buses."""
    devices = [
        replace(device, send=ns + 7 * number, receive=ns // 2, sum=2 * ns, iteration=3 * ns, copying=2e10)
        for number, device in enumerate(topology.devices)
    ]
    curve = ((1 << 10, ns // 8), (1 << 16, ns // 4), (1 << 22, 8 * ns))
    buses = (Bus("all", 4e9), Bus("some", 6e9))
    names = (("all",), ("some", "all"), ())
    links = [replace(link, times=curve, exposed=0.25, buses=names[i % 3]) for i, link in enumerate(topology.links)]
    sums = [Sum(members, nodes, curve) for members in (2, 4, 8) for nodes in (1, 2)]
    return ss.Topology(tuple(devices), tuple(links), tuple(sums), buses)


def launches_of(sim: ss.Simulation) -> list[tuple[int, ...]]:
    """Of each task, what the hosts of what it holds take."""
    first = np.searchsorted(sim.native.hold_rows, np.arange(len(sim.tasks) + 1))
    return [tuple(sim.native.hold_launches[a:b].tolist()) for a, b in pairwise(first)]


def at_start(topology: ss.Topology) -> tuple[dict[int, int], dict[int, int]]:
    """When each device is free, and when its host has launched all before, as an iteration begins."""
    hosts = {i: device.iteration for i, device in enumerate(topology.devices) if device.has_host}
    return {i: d.iteration for i, d in enumerate(topology.devices) if not d.has_host}, hosts


def start(
    name: str,
    text: str,
    seed: int,
    bucket_bytes: int = 0,
    launching: float = 0.0,
    messages: int = 0,
    **options: bool,
) -> ss.Simulator:
    graph, topology = graph_of(name), ss.Topology.parse(text)
    if messages:
        topology = with_hosts(topology, messages)
    strategies = (ss.baselines.data_parallel(graph, topology), ss.baselines.random(graph, topology, seed=seed))
    strategy, rng = strategies[seed % 2], random.Random(seed)
    sharded = {op: replace(strategy[op], shard=shard_of(name, op, rng)) for op in strategy}
    training = ss.Training(Launching(launching), bucket_bytes=bucket_bytes, groups_ahead=seed % 3)
    return ss.Simulator(graph, topology, strategy.replace(sharded), training=training, **options)


def moves(name: str, text: str, seed: int) -> Iterator[Changes]:
    """Mostly one op, sometimes several; sometimes parts that share a device; weights whole, in shares, or both."""
    rng = random.Random(f"{name} {text} {seed}")
    options = configurations(name, text)
    devices = ss.Topology.parse(text).num_devices
    while True:
        ops = rng.sample(list(options), min(rng.choice((1, 1, 1, 2, 5)), len(options)))
        changes = {op: rng.choice(options[op]) for op in ops}
        if rng.random() < 0.1:
            degrees = changes[ops[0]].degrees
            places = tuple(rng.randrange(devices) for _ in changes[ops[0]].devices)
            changes[ops[0]] = ss.Configuration(degrees, places)
        yield {
            op: replace(change, shard=shard_of(name, op, rng), recompute=rng.random() < 0.3)
            for op, change in changes.items()
        }


def shard_of(name: str, op: str, rng: random.Random) -> str:
    """Any, but always the same for ops that share a weight, which have to agree."""
    index = graph_of(name).index(op)
    shares = any(index in group for group in graph_of(name).sharers if len(group) > 1)
    return SHARDS[len(name) % 3] if shares else rng.choice(SHARDS)


def limit_of(makespan: int, u: float, scale: int) -> int:
    """The largest makespan that Metropolis accepts at beta = 1 / (5e-4 scale) for a uniform draw."""
    return makespan + int(-log(u) * 5e-4 * scale)


def play_all(sim: ss.Simulator, changes: Changes) -> int:
    """Propose to every engine; all must agree on every task. Leaves no proposal open."""
    found: list[tuple[int | None, Timeline]] = []
    for engine in ENGINES:
        makespan = sim.propose(changes, engine=engine)
        found.append((makespan, sim.native.timeline()))
        sim.reject()
    (makespan, timeline), *others = found
    assert makespan is not None
    for engine, (other, tasks) in zip(ENGINES[1:], others):
        assert other == makespan, engine
        assert all(np.array_equal(a, b) for a, b in zip(tasks, timeline)), engine
    assert sim.native.bound <= makespan
    return makespan


def same_as_fresh(sim: ss.Simulator) -> None:
    """The simulator knows what a simulation from scratch finds: every task's times, the makespan, the memory."""
    fresh = sim.result()
    keys, ready, end = sim.native.timeline()
    order = np.argsort(keys)
    assert np.array_equal(keys[order], fresh.tasks["id"])
    assert np.array_equal(ready[order], fresh.tasks["ready"])
    assert np.array_equal(end[order], fresh.tasks["end"])
    assert sim.makespan_ns == fresh.makespan_ns
    assert np.array_equal(sim.memory_bound, fresh.memory.bound)
    optimizer = sim.training.optimizer
    beside = fresh.memory.workspace  # which libraries take, whatever is played
    assert np.array_equal(sim.native.peak(states_of(optimizer), temporaries_of(optimizer)) + beside, fresh.memory.peak)
