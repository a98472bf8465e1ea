"""`soapstone calibrate`: how fast are the links here? Under torchrun. `soapstone ranks`: several ranks on one GPU."""

from __future__ import annotations

import os
import shutil
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..errors import SoapstoneError
from ..files import check_writable
from ..graph import scaled
from .common import AsJson, Listing, print_all, print_json, say

if TYPE_CHECKING:
    import torch

    from ..runtime import Transport
    from ..runtime.calibration import Calibration

EXAMPLE = "torchrun --nproc-per-node 2 -m soapstone calibrate -o here.yaml"
NumRanks = Annotated[int, typer.Argument(min=1, help="How many ranks share the GPU.")]
Command = Annotated[list[str], typer.Argument(help="What each rank runs; write -- before it.")]
Output = Annotated[Path | None, typer.Option("-o", "--output", help="Write the topology here, as YAML.")]


def calibrate(output: Output = None, as_json: AsJson = False) -> None:
    """Measure the links between ranks, under torchrun. Latency, overhead and bandwidth become a topology file."""
    from ..runtime.transports import joined

    if output is not None:
        check_writable(output)
    with joined(EXAMPLE) as (transport, place):
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
        numbers = ("latency", "overhead", "bandwidth", "summing")
        table = Listing(("link", *numbers), numbers)
        for link in found.topology.links:
            times = (f"{link.latency / 1e3:.1f} us", f"{link.overhead / 1e3:.1f} us")
            rates = (f"{scaled(link.bandwidth, 'B')}/s", f"{scaled(link.summing or 0, 'B')}/s")
            table.add_row(f"{link.source} - {link.target}", *times, *rates)
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
        shared = ", ".join(f"{bus.name} {scaled(bus.bandwidth, 'B')}/s" for bus in found.topology.buses)
        together = f"Messages at once share: {shared}." if shared else "No links share a bus."
        print_all(table, f"\nAn all-reduce among all {transport.size} ranks: {sums}.", together, hidden, threads)
        if found.unsure:
            some = "; ".join(found.unsure[:4]) + (
                f"; and {len(found.unsure) - 4} more" if len(found.unsure) > 4 else ""
            )
            say(f"Unsure, since it varied however often it was measured: {some}. Measure again on a quiet machine.")


def measured_links(transport: Transport, place: torch.device) -> Calibration:
    """What a calibration finds, saying meanwhile what it does; every rank calls it."""
    from ..runtime.calibration import Calibrator

    last = [""]

    def progress(share: float, what: str) -> None:
        if transport.rank == 0 and what != last[0]:
            say(f"Measuring {what} ({share:.0%}) ...")
            last[0] = what

    return Calibrator(transport, place, progress).run()


def ranks(
    count: NumRanks,
    command: Command,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print each rank's exit status as JSON; what the ranks print goes to stderr.")
    ] = False,
) -> None:
    """Run a command on ranks that share one GPU. They talk over NCCL, each with its part of the multiprocessors."""
    import torch

    from ..runtime.sharing import run_ranks, shared_gpu

    if shutil.which(command[0]) is None:
        raise SoapstoneError(f"there is no command {command[0]!r}")
    if not torch.cuda.is_available():
        raise SoapstoneError("there is no GPU to share; on CPUs, start ranks with torchrun")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # so that nothing of it stays
    with shared_gpu(count) as environments, _stdout_to_stderr() if as_json else nullcontext():
        found = run_ranks(command, environments)
    if as_json:
        print_json({"statuses": list(found)})
    failed = [rank for rank, status in enumerate(found) if status]
    if failed:
        raise SoapstoneError(f"{'rank' if len(failed) == 1 else 'ranks'} {', '.join(map(str, failed))} failed")


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
