"""Going on with fewer ranks than a topology has devices: torchrun restarts with those that are left."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..baselines import is_baseline
from ..errors import SoapstoneError, StrategyError
from ..files import whole_number
from ..searching import search
from ..strategy import Strategy
from ..topology import first_devices
from .arguments import Case, costs_of
from .common import duration, progress, say

if TYPE_CHECKING:
    from ..runtime import Transport

SECONDS = 10.0  # for a search

Elastic = Annotated[
    bool, typer.Option("--elastic", help="Go on where torchrun has fewer ranks left than the topology has devices.")
]
Fallback = Annotated[
    list[Path] | None,
    typer.Option(help="A strategy file for fewer ranks; may be given several times. Otherwise one is searched."),
]


def with_fewer_ranks(case: Case) -> Case:
    """The case on as many devices as there are ranks."""
    size = whole_number(os.environ.get("WORLD_SIZE", "")) or 0
    if not 1 <= size < case.topology.num_devices:
        return case
    machines = first_devices(case.topology, size)
    if not case.is_measured:
        return replace(case, topology=machines)
    costs = costs_of(str(case.arguments["costs"]), machines)
    return replace(case, topology=machines, training=replace(case.training, costs=costs))


def given_strategy(case: Case, name: str, fallbacks: list[Path]) -> Strategy | None:
    """A baseline, or the first file that is for so many devices; None where there is none. Raises SoapstoneError where
    a file is none of a strategy."""
    if is_baseline(name):
        return case.strategy(name)
    for path in (name, *map(str, fallbacks)):
        try:
            found = case.strategy(path)
        except StrategyError as error:
            say(f"{path} is not for {case.topology.num_devices} ranks: {error}")
            continue
        if _uses_all(found):
            return found
    return None


def _uses_all(strategy: Strategy) -> bool:
    used = {device for configuration in strategy.values() for device in configuration.devices}
    return len(used) == strategy.topology.num_devices


def searched_strategy(case: Case, transport: Transport) -> Strategy:
    """What rank 0 finds in some seconds, on all ranks."""
    found = None
    if transport.rank == 0:
        with progress(f"Searching a strategy for {case.topology.num_devices} ranks, {SECONDS:.0f} s"):
            result = search(case.graph, case.topology, training=case.training, budget=SECONDS)
        say(f"Going on with {case.topology.num_devices} ranks, {duration(result.makespan)} a step predicted.")
        found = dict(result.strategy), result.strategy.microbatches
    rows, microbatches = transport.exchange(found)[0]
    return Strategy(case.graph, case.topology, rows, microbatches)


def check_elastic(elastic: bool, fallbacks: list[Path]) -> None:
    """Raise SoapstoneError where options do not belong together."""
    if fallbacks and not elastic:
        raise SoapstoneError("--fallback is for fewer ranks than devices; add --elastic")
