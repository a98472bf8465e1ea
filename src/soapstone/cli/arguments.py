"""What commands about a model on a cluster are asked for, and what they get."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, wraps
from pathlib import Path
from typing import Annotated, Any, get_args, get_type_hints

import typer

from ..baselines import BASELINES, baseline, is_baseline
from ..costs import AnalyticCosts, Costs
from ..errors import SoapstoneError, meant
from ..files import files_beside
from ..graph import OperatorGraph
from ..loading import Request, check_request
from ..simulator import Training
from ..strategy import Strategy, arguments_in
from ..topology import Topology, neighbours_of
from . import completion
from .common import (
    Batch,
    BatchNorm,
    BatchPerDevice,
    Chunk,
    Fresh,
    ModelName,
    Precision,
    Sizes,
    captured,
    request_of,
    say,
)
from .made_for import check_made_for

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
Fit = Annotated[bool, typer.Option("--fit", help="Let a strategy file name ops that the model does not have.")]
Optimizer = Annotated[str, typer.Option(help="sgd, momentum, adam or adamw.")]
StrategyFile = Annotated[
    str, typer.Argument(metavar="STRATEGY", help=f"A strategy file, or one of {', '.join(BASELINES)}.")
]
CostsName = Annotated[str, typer.Option("--costs", help="analytic: from a table; measured: of this machine's device.")]
BucketBytes = Annotated[
    int | None,
    typer.Option(
        min=0, help="Sum gradients in buckets of this size; 0: one by one. By default 4 MiB on CPUs, 25 on GPUs."
    ),
]
BATCHES = {"batch", "batch_per_device"}  # of which a user gives one


@dataclass(frozen=True)
class Case:
    """A model on a cluster, as a user named them."""

    request: Request
    load: Callable[[], OperatorGraph]
    topology: Topology
    training: Training
    arguments: Mapping[str, Any]  # that it was read from: `read_case(**arguments)` is this case again
    fit: bool = False  # whether a strategy file may name ops that the model does not have

    @property
    def graph(self) -> OperatorGraph:
        """Captured when it is first asked for, so that what is wrong with the other arguments is said before."""
        return self.load()

    @property
    def where(self) -> str:
        """The topology's name."""
        return str(self.arguments["topology"])

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
        """A baseline, or the strategy in a file, with a remark where that was made for something else. Raises
        StrategyError."""
        return self.strategies(name)[0]

    def strategies(self, *names: str) -> list[Strategy]:
        """Several, all of whose names are checked before the model is captured."""
        for name in names:
            _check_strategy(name)
        found = [
            baseline(name, self.graph, self.topology)
            if is_baseline(name)
            else Strategy.load(name, self.graph, self.topology, fit=self.fit)
            for name in names
        ]
        for note in (note for strategy in found for note in strategy.notes):
            say(note)
        for name, strategy in zip(names, found):
            if strategy.measured is not None:
                say(f"{name} took {strategy.measured}.")
        return found


def _check_strategy(name: str) -> None:
    """Raise SoapstoneError unless it is a baseline or a strategy file."""
    if is_baseline(name):
        return
    if not Path(name).exists():
        known = [*BASELINES, *files_beside(name, ".json")]
        remedy = meant(name, known, f"use {', '.join(BASELINES)}, or a strategy file")
        raise SoapstoneError(f"there is no strategy {name!r}; {remedy}")
    arguments_in(name)


def read_case(
    model: ModelName,
    topology: TopologyName,
    batch: Batch = None,
    batch_per_device: BatchPerDevice = None,
    precision: Precision = "float32",
    optimizer: Optimizer = "adam",
    bucket_bytes: BucketBytes = None,
    sizes: Sizes = None,
    chunk: Chunk = 1,
    batch_norm: BatchNorm = "global",
    fresh: Fresh = False,
    costs: CostsName = "analytic",
    fit: Fit = False,
) -> Case:
    arguments = {
        "model": model, "topology": topology, "batch": batch, "batch_per_device": batch_per_device,
        "precision": precision, "sizes": sizes, "chunk": chunk, "batch_norm": batch_norm, "optimizer": optimizer,
        "bucket_bytes": bucket_bytes, "costs": costs,
    }  # fmt: skip
    return case_on(topology_of(topology), arguments, fresh, fit)


def case_on(machines: Topology, arguments: Mapping[str, Any], fresh: bool = False, fit: bool = False) -> Case:
    """The case of these arguments of `read_case` on machines that bear the topology's name."""
    given = dict(arguments)
    training = Training(costs_of(given["costs"], machines), given["optimizer"], given["bucket_bytes"])
    request = request_of(
        given["model"], given["batch"], given["sizes"], given["chunk"], given["batch_norm"], given["precision"],
        given["batch_per_device"], machines,
    )  # fmt: skip
    check_request(request)
    return Case(request, cache(lambda: captured(request, fresh)), machines, training, given, fit)


@dataclass(frozen=True)
class Unplaced:
    """A model that a user named, and perhaps the topology; other machines may be found later."""

    arguments: Mapping[str, Any]
    fresh: bool
    fit: bool

    @property
    def topology(self) -> str | None:
        named = self.arguments["topology"]
        return None if named is None else str(named)

    def on(self, machines: Topology, name: str, **changes: Any) -> Case:
        return case_on(machines, {**self.arguments, "topology": name, **changes}, self.fresh, self.fit)


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


def takes_case(command: Callable[..., None]) -> Callable[..., None]:
    """A command whose first parameter is a Case, as one with all the options that a case is read from."""
    return _asking(command, _asked(command), get_type_hints(read_case, include_extras=True), read_case)


def takes_unplaced(**defaults: Any) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """For a command whose first parameter is an Unplaced: the options of a case, some with other defaults, and the
    topology may be left out."""
    hints = get_type_hints(read_case, include_extras=True)
    hints["topology"] = _optional(hints["topology"])
    defaults = {"topology": None, **defaults}

    def read(fresh: bool, fit: bool = False, **given: Any) -> Unplaced:
        return Unplaced(given, fresh, fit)

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        asked = [p.replace(default=defaults.get(p.name, p.default)) for p in _asked(command)]
        return _asking(command, asked, hints, read)

    return decorate


def takes_strategy(command: Callable[..., None]) -> Callable[..., None]:
    """A command whose first parameters are a Case and the name of a strategy. A file that a search wrote says what it
    was made for; options say otherwise, or say it for a baseline."""
    hints = get_type_hints(read_case, include_extras=True)
    hints = {name: _optional(hint) for name, hint in hints.items() if name != "return"}
    hints["model"] = Annotated[str | None, typer.Option("--model", help="Where the strategy's file does not say it.")]
    asked = [p.replace(default=None) for p in _asked(command)]

    def read(strategy: str, **given: Any) -> Case:
        options = {name: value for name, value in given.items() if value is not None}
        made_for = {} if is_baseline(strategy) else arguments_in(strategy)
        said = options.keys() | (BATCHES if BATCHES & options.keys() else set())
        made_for = {name: value for name, value in made_for.items() if name not in said}
        check_made_for(strategy, made_for, hints)
        known = made_for | options
        if "model" not in known or "topology" not in known:
            raise SoapstoneError(f"{strategy} does not say what it was made for; add --model MODEL and -t TOPOLOGY")
        return read_case(**known)

    return _asking(command, asked, hints, read, passes=("strategy",))


def _asked(command: Callable[..., None]) -> list[inspect.Parameter]:
    """What a case is read from: --fit only for a command that takes strategies."""
    takes_files = {"strategy", "start"} & inspect.signature(command).parameters.keys()
    asked = inspect.signature(read_case).parameters.values()
    return [parameter for parameter in asked if parameter.name != "fit" or takes_files]


def _asking(
    command: Callable[..., None], asked: list[inspect.Parameter], hints: dict[str, Any], read: Callable[..., Any],
    passes: tuple[str, ...] = (),
) -> Callable[..., None]:  # fmt: skip
    """The command with the options that its case is read from, and from those of its own that `read` is passed, too."""
    own = list(inspect.signature(command).parameters.values())[1:]
    # Typer reads the help from the hints, which are strings until they are asked for.
    hints = {**hints, **get_type_hints(command, include_extras=True)}

    @wraps(command)
    def run(**given: Any) -> None:
        case = {parameter.name: given.pop(parameter.name) for parameter in asked}
        command(read(**case, **{name: given[name] for name in passes}), **given)

    required = inspect.Parameter.empty
    everything = sorted([*asked, *own], key=lambda parameter: parameter.default is not required)
    run.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [p.replace(annotation=hints[p.name], kind=inspect.Parameter.KEYWORD_ONLY) for p in everything]
    )
    run.__annotations__ = {p.name: hints[p.name] for p in everything}
    return run


def _optional(hint: Any) -> Any:
    """The same option, which nobody has to give."""
    kind, *about = get_args(hint)
    return Annotated[kind | None, *about]
