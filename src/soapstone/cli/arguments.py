"""What commands about a model on a cluster are asked for, and what they get."""

from __future__ import annotations

import inspect
import os
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

from ..baselines import BASELINES
from ..costs import AnalyticCosts, Costs
from ..errors import SoapstoneError, meant
from ..graph import OperatorGraph
from ..loading import Request
from ..simulator import Training
from ..strategy import Strategy
from ..topology import Topology
from . import completion
from .common import Amp, Batch, BatchNorm, BatchPerDevice, Chunk, Dtype, Fresh, ModelName, Sizes, captured, request_of

TopologyName = Annotated[
    str,
    typer.Option(
        "-t",
        "--topology",
        help="A preset such as p100:4x4, several joined by +, a YAML file, or here.",
        autocompletion=completion.topologies,
    ),
]
StrategyName = Annotated[
    str,
    typer.Option(
        "-s", "--strategy", help=f"{', '.join(BASELINES)}, or a strategy file.", autocompletion=completion.strategies
    ),
]
Optimizer = Annotated[str, typer.Option(help="sgd, momentum, adam or adamw.")]
CostsName = Annotated[str, typer.Option("--costs", help="analytic: from a table; measured: of this machine's device.")]
BucketBytes = Annotated[
    int | None,
    typer.Option(help="Sum gradients in buckets of this size; 0: one by one. By default 4 MiB on CPUs, 25 on GPUs."),
]


@dataclass(frozen=True)
class Case:
    """A model on a cluster, as a user named them."""

    request: Request
    graph: OperatorGraph
    topology: Topology
    training: Training
    where: str  # the topology's name

    @property
    def file_name(self) -> str:
        """What a file about this case may be called: nmt.p100-4x4."""
        path, _, function = self.model.rpartition(":")
        model = f"{Path(path).stem}-{function}" if path else function
        where = Path(self.where).stem if self.where.endswith((".yaml", ".yml")) else self.where
        return re.sub(r"[^\w.+-]+", "-", f"{model}.{where}")

    @property
    def model(self) -> str:
        return self.request.model

    @property
    def is_measured(self) -> bool:
        return not isinstance(self.training.costs, AnalyticCosts)

    def strategy(self, name: str) -> Strategy:
        """A baseline, or the strategy in a file. Raises StrategyError."""
        if name in BASELINES:
            return BASELINES[name](self.graph, self.topology)
        if not Path(name).exists():
            remedy = meant(name, BASELINES, f"use {', '.join(BASELINES)}, or a strategy file")
            raise SoapstoneError(f"there is no strategy {name!r}; {remedy}")
        return Strategy.load(name, self.graph, self.topology)


def read_case(
    model: ModelName,
    topology: TopologyName,
    batch: Batch = None,
    batch_per_device: BatchPerDevice = None,
    dtype: Dtype = "float32",
    amp: Amp = "",
    optimizer: Optimizer = "adam",
    bucket_bytes: BucketBytes = None,
    sizes: Sizes = None,
    chunk: Chunk = 1,
    batch_norm: BatchNorm = "global",
    fresh: Fresh = False,
    costs: CostsName = "analytic",
) -> Case:
    machines = topology_of(topology)
    training = Training(costs_of(costs, machines), optimizer, bucket_bytes)
    request = request_of(model, batch, sizes, chunk, batch_norm, dtype, batch_per_device, machines, amp)
    return Case(request, captured(request, fresh), machines, training, topology)


def topology_of(name: str) -> Topology:
    """The topology that a user names. Raises TopologyError."""
    if name == "here":
        return Topology.detect()
    return Topology.load(name) if name.endswith((".yaml", ".yml")) else Topology.parse(name)


def costs_of(name: str, topology: Topology) -> Costs:
    """Raises SoapstoneError for costs that there are not, or that this machine cannot measure."""
    if name == "analytic":
        return AnalyticCosts()
    if name != "measured":
        remedy = meant(name, ("analytic", "measured"), "use analytic or measured")
        raise SoapstoneError(f"there are no costs {name!r}; {remedy}")
    from ..costs.measured import MeasuredCosts  # loads torch

    on_cpu = topology.devices[0].kind.startswith("cpu")
    costs = MeasuredCosts("cpu", beside=neighbours_of(topology)) if on_cpu else MeasuredCosts("cuda")
    for kind in dict.fromkeys(device.kind for device in topology.devices):
        costs.machine.check_kind(kind)
    return costs


def neighbours_of(topology: Topology) -> int:
    """How many other ranks are at work beside one on its machine, as far as this one has cores for them."""
    nodes = Counter(device.node for device in topology.devices)
    return min(max(nodes.values()), len(os.sched_getaffinity(0))) - 1


def takes_case(command: Callable[..., None]) -> Callable[..., None]:
    """A command whose first parameter is a Case, as one with all the options that a case is read from."""
    asked = list(inspect.signature(read_case).parameters.values())
    own = list(inspect.signature(command).parameters.values())[1:]
    # Typer reads the help from the hints, which are strings until they are asked for.
    hints = {**get_type_hints(read_case, include_extras=True), **get_type_hints(command, include_extras=True)}

    @wraps(command)
    def run(**given: Any) -> None:
        case = {parameter.name: given.pop(parameter.name) for parameter in asked}
        command(read_case(**case), **given)

    required = inspect.Parameter.empty
    everything = sorted([*asked, *own], key=lambda parameter: parameter.default is not required)
    run.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [p.replace(annotation=hints[p.name], kind=inspect.Parameter.KEYWORD_ONLY) for p in everything]
    )
    run.__annotations__ = {p.name: hints[p.name] for p in everything}
    return run
