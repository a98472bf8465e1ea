"""`soapstone calibrate`, under torchrun: how fast are the links? `soapstone ranks`: several ranks or nodes here."""

from __future__ import annotations

import math
import os
import re
import shutil
import signal
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..errors import SoapstoneError
from ..files import check_writable, shortened
from ..graph import scaled
from .common import AsJson, Interface, Listing, print_all, print_json, say
from .live import measuring

if TYPE_CHECKING:
    import torch

    from ..runtime import Transport
    from ..runtime.calibration import Calibration
    from ..topology import Topology

EXAMPLE = "torchrun --nproc-per-node 2 -m soapstone calibrate -o here.yaml"
Shape = Annotated[str, typer.Argument(metavar="RANKS|NODESxRANKS", help="How many ranks, or nodes and ranks of each.")]
Gbit = Annotated[float | None, typer.Option(min=0.001, max=1000, help="Gb/s that a node's adapter passes each way.")]
Agents = Annotated[bool, typer.Option("--agents", help="Run the command once on each node, as torchrun's agents are.")]
Command = Annotated[list[str], typer.Argument(help="What each rank runs; write -- before it.")]
Output = Annotated[Path | None, typer.Option("-o", "--output", help="Write the topology here, as YAML.")]


def calibrate(output: Output = None, interface: Interface = None, as_json: AsJson = False) -> None:
    """Measure the links between ranks, under torchrun. Latency, overhead and bandwidth become a topology file."""
    from ..runtime.transports import joined

    if output is not None:
        check_writable(output)
    with joined(EXAMPLE, interface=interface) as (transport, place):
        found = measured_links(transport, place)
        if transport.rank != 0:
            return
        if output is not None:
            found.topology.save(output)
        if as_json:
            print_json(
                {
                    "links": [
                        {name: getattr(link, name) for name in link.__dataclass_fields__}
                        for link in found.topology.links
                    ],
                    "buses": {bus.name: bus.bandwidth for bus in found.topology.buses},
                    "all_reduce": found.all_reduce,
                    "exposed": found.exposed,
                    "unsure": list(found.unsure),
                }
            )
            return
        table = _links(found.topology)
        sums = ", ".join(f"{scaled(size, 'B')} in {t * 1e6:,.0f} us" for size, t in found.all_reduce.items())
        if not sums:
            print_all("There is one rank, so there are no links to measure.")
            return
        hidden = f"Compute beside an all-reduce hides {1 - found.exposed:.0%} of it."
        device = found.topology.devices[0]
        threads = (
            f"A message costs the thread at each end {device.send / 1e3:,.0f} us, a sum {device.sum / 1e3:,.0f} us, "
            f"an iteration {device.iteration / 1e3:,.0f} us; gradients are copied at "
            f"{scaled(device.copying or 0, 'B')}/s."
        )
        shared = ", ".join(_buses(found.topology))
        together = f"Messages at once share: {shared}." if shared else "No links share a bus."
        print_all(table, f"\nAn all-reduce among all {transport.size} ranks: {sums}.", together, hidden, threads)
        if found.unsure:
            some = "; ".join(found.unsure[:4]) + (
                f"; and {len(found.unsure) - 4} more" if len(found.unsure) > 4 else ""
            )
            say(f"Unsure, since it varied however often it was measured: {some}. Measure again on a quiet machine.")


def _links(topology: Topology) -> Listing:
    """A row for all links with the same numbers."""
    numbers = ("latency", "overhead", "bandwidth", "summing")
    table = Listing(("link", *numbers), numbers)
    rows: dict[tuple[str, ...], list[str]] = {}
    for link in topology.links:
        times = (f"{link.latency / 1e3:.1f} us", f"{link.overhead / 1e3:.1f} us")
        summing = link.bandwidth if link.summing is None else link.summing
        rates = (f"{scaled(link.bandwidth, 'B')}/s", f"{scaled(summing, 'B')}/s")
        rows.setdefault((*times, *rates), []).append(f"{link.source} - {link.target}")
    for row, (first, *more) in rows.items():
        table.add_row(f"{first} and {len(more)} more" if more else first, *row)
    return table


def _buses(topology: Topology) -> list[str]:
    """All buses that are as fast as one another together."""
    names: dict[float, list[str]] = {}
    for bus in topology.buses:
        names.setdefault(bus.bandwidth, []).append(bus.name)
    return [
        f"{first}{f' and {len(more)} more' if more else ''} {scaled(rate, 'B')}/s"
        for rate, (first, *more) in names.items()
    ]


def measured_links(transport: Transport, place: torch.device) -> Calibration:
    """What a calibration finds; every rank calls it, and rank 0 shows how far it is."""
    from ..runtime.calibration import Calibrator

    if transport.rank != 0:
        return Calibrator(transport, place).run()
    with measuring(f"Measuring the links of {transport.size} ranks", every=20.0) as show:
        return Calibrator(transport, place, show).run()


def ranks(
    shape: Shape,
    command: Command,
    gbit: Gbit = None,
    agents: Agents = False,
    as_json: Annotated[
        bool,
        typer.Option("--json", help="Print each exit status as JSON; what the processes print goes to stderr."),
    ] = False,
) -> None:
    """Run a command on several ranks of this machine: ranks that share one GPU, or several nodes.

    Ranks that share a GPU talk over NCCL, each with its part of the multiprocessors. A node is a network namespace
    with an adapter of its own, so NODESxRANKS needs root.
    """
    from ..runtime.sharing import made_nodes, run_ranks

    num_nodes, per_node = _shape(shape)
    if shutil.which(command[0]) is None:
        raise SoapstoneError(f"there is no command {command[0]!r}")
    if num_nodes == 0 and (gbit is not None or agents):
        raise SoapstoneError("--gbit and --agents are for nodes; write NODESxRANKS, such as 2x4, for the ranks")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # so that nothing of it stays
    with ExitStack() as stack:
        if as_json:
            stack.enter_context(_stdout_to_stderr())
        environments = stack.enter_context(_environments(max(num_nodes, 1), per_node, agents))
        if num_nodes == 0:
            found = run_ranks(command, environments)
        else:
            nodes = stack.enter_context(made_nodes(num_nodes, gbit))
            each = len(environments) // num_nodes
            patience = {"patience": math.inf} if agents else {}  # torchrun goes on with the nodes that are left
            found = run_ranks(command, environments, enter=lambda number: nodes.enter(number // each), **patience)
    if as_json:
        print_json({"statuses": list(found)})
    failed = [number for number, status in enumerate(found) if status]
    if failed:
        what = "agent" if agents else "rank"
        raise SoapstoneError(f"{what}{'s' if len(failed) > 1 else ''} {', '.join(map(str, failed))} failed")


def _shape(text: str) -> tuple[int, int]:
    """How many nodes, 0 for this machine as it is, and how many ranks each has: "2x4" or "4"."""
    found = re.fullmatch(r"(?:([1-9]\d{0,3})x)?([1-9]\d{0,3})", text, re.ASCII)
    if not found:
        raise SoapstoneError(f"the ranks are {shortened(text)}; write their number, or NODESxRANKS such as 2x4")
    return int(found[1] or 0), int(found[2])


def _environments(num_nodes: int, per_node: int, with_agents: bool) -> AbstractContextManager[list[dict[str, str]]]:
    """Of each agent or rank, which shares the GPU if there is one."""
    import torch

    from ..runtime.sharing import agents, cpu_ranks, shared_gpu

    if with_agents:
        return nullcontext(agents(per_node, num_nodes))
    return shared_gpu(per_node, num_nodes) if torch.cuda.is_available() else nullcontext(cpu_ranks(per_node, num_nodes))


@contextmanager
def _stdout_to_stderr() -> Iterator[None]:
    """What processes that are started meanwhile print."""
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)
