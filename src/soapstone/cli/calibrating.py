"""`soapstone calibrate`, under torchrun: measures the links between ranks."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..files import check_writable
from ..graph import scaled
from .common import AsJson, Interface, Listing, print_all, print_json, say
from .live import measuring

if TYPE_CHECKING:
    import torch

    from ..runtime import Transport
    from ..runtime.calibration import Calibration
    from ..topology import Topology

EXAMPLE = "torchrun --nproc-per-node 2 -m soapstone calibrate -o here.yaml"
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
            print_json(_described(found))
        elif transport.size == 1:
            print_all("There is one rank, so there are no links to measure.")
        else:
            print_all(_links(found.topology), *_sentences(found))
            if found.unsure:
                say(f"{_unsure(found.unsure)} Measure again on a quiet machine.")


def _described(found: Calibration) -> dict[str, Any]:
    links = found.topology.links
    return {
        "links": [{name: getattr(link, name) for name in link.__dataclass_fields__} for link in links],
        "buses": {bus.name: bus.bandwidth for bus in found.topology.buses},
        "all_reduce": found.all_reduce,
        "exposed": found.exposed,
        "unsure": list(found.unsure),
    }


def _sentences(found: Calibration) -> tuple[str, ...]:
    device = found.topology.devices[0]
    sums = ", ".join(f"{scaled(size, 'B')} in {t * 1e6:,.0f} us" for size, t in found.all_reduce.items())
    shared = ", ".join(_buses(found.topology))
    return (
        f"\nAn all-reduce among all {found.topology.num_devices} ranks: {sums}.",
        f"Messages at once share: {shared}." if shared else "No links share a bus.",
        f"Compute beside an all-reduce hides {1 - found.exposed:.0%} of it.",
        f"A message costs the thread at each end {device.send / 1e3:,.0f} us, a sum {device.sum / 1e3:,.0f} us, "
        f"an iteration {device.iteration / 1e3:,.0f} us; gradients are copied at {scaled(device.copying or 0, 'B')}/s.",
    )


def _unsure(names: tuple[str, ...]) -> str:
    more = f"; and {len(names) - 4} more" if len(names) > 4 else ""
    return f"Unsure, since these still varied after several measurements: {'; '.join(names[:4])}{more}."


def _links(topology: Topology) -> Listing:
    """The table of links; links with the same numbers share a row."""
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
    """The buses, those with the same bandwidth together."""
    names: dict[float, list[str]] = {}
    for bus in topology.buses:
        names.setdefault(bus.bandwidth, []).append(bus.name)
    return [
        f"{first}{f' and {len(more)} more' if more else ''} {scaled(rate, 'B')}/s"
        for rate, (first, *more) in names.items()
    ]


def measured_links(transport: Transport, place: torch.device) -> Calibration:
    """Calibrate. Every rank calls this, and rank 0 shows the progress."""
    from ..runtime.calibration import Calibrator

    if transport.rank != 0:
        return Calibrator(transport, place).run()
    with measuring(f"Measuring the links of {transport.size} ranks", every=20.0) as show:
        return Calibrator(transport, place, show).run()
