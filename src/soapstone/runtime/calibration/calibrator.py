"""Measures all numbers, one after the other."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch

from ...parts import keep_freed_memory
from ..transports import Pair, Transport
from .assembly import Calibration, Measured, assemble
from .classes import Alike, Representatives, classes_of_nodes, classes_of_pairs
from .meter import LARGE, MESSAGES, MIB, SMALL, SUMS, Meter
from .names import all_reduce, message, one_way_out, out_and_in, overhead
from .passes import Found, Measure, Numbers, measured
from .programs import Programs
from .seats import Seats, find_seats
from .together import NETWORK, Selection, both_ways, groups_of, inside_at_once, out_of

Progress = Callable[[float, str], None]
AGREE = 1.5  # the ratio up to which two members of a class count as equal
COMPARING = 0.2  # the fraction of the work that comparing members takes, for the progress


class Calibrator:
    """Every rank makes one and calls `run`."""

    def __init__(
        self, transport: Transport, place: torch.device, progress: Progress = lambda share, what: None
    ) -> None:
        self._transport, self._place, self._progress = transport, place, progress
        self._meter = Meter(transport, place)

    def run(self) -> Calibration:
        if self._place.type == "cpu":
            keep_freed_memory()  # as training does
        seats = find_seats(self._transport, self._place)
        selection = Selection(seats, *self._representatives(seats), groups_of(seats), inside_at_once(seats))
        numbers = Numbers()
        if len(seats.devices) > 1:
            self._open_all(selection)
            measures = self._measures(selection)
            numbers = measured(measures, lambda share, what: self._progress(COMPARING + (1 - COMPARING) * share, what))
        return assemble(Measured(selection, numbers, self._place.type == "cpu"))

    def _representatives(self, seats: Seats) -> tuple[Representatives[Pair], Representatives[int]]:
        """Compare the first and the last of each class of pairs and of nodes."""
        pairs = classes_of_pairs(seats)
        nodes = classes_of_nodes(seats) if len(seats.nodes) > 1 else []
        compared = [pair for each in pairs if len(each.members) > 1 for pair in each.compared]
        adapters = [node for each in nodes if len(each.members) > 1 for node in each.compared]
        self._open([*compared, *(pair for node in adapters for pair in out_of(seats, node))], [])
        measures = {}
        if compared:
            measures["whether pairs are alike"] = Measure(lambda: self._messages(compared, (SMALL, LARGE)), AGREE - 1)
        if adapters:
            measures["whether nodes are alike"] = Measure(lambda: self._adapters(seats, adapters), AGREE - 1)
        numbers = measured(measures, lambda share, what: self._progress(COMPARING * share, what))

        def agree_pairs(each: Alike[Pair]) -> bool:
            return all(_agree([numbers[message(*pair, size)] for pair in each.compared]) for size in (SMALL, LARGE))

        def agree_nodes(each: Alike[int]) -> bool:
            return all(_agree([numbers[name(node)] for node in each.compared]) for name in (one_way_out, out_and_in))

        return (
            Representatives(pairs, lambda each: len(each.members) == 1 or agree_pairs(each)),
            Representatives(nodes, lambda each: len(each.members) == 1 or agree_nodes(each)),
        )

    def _open_all(self, selection: Selection) -> None:
        seats = selection.seats
        inside = [pair for nodes in selection.inside.values() for messages in nodes for pair in messages]
        out = [pair for node in selection.nodes.measured for pair in out_of(seats, node)]
        network = selection.everything_out if len(seats.nodes) > 2 else []
        groups = [ranks for several in selection.groups.values() for ranks in several]
        self._open([*selection.pairs.measured, *inside, *out, *network], groups)

    def _open(self, messages: Iterable[Pair], groups: Iterable[tuple[int, ...]]) -> None:
        """Connect these pairs of ranks, in whichever order they are named, and these sets of ranks."""
        pairs = dict.fromkeys((min(pair), max(pair)) for pair in messages)
        self._transport.open(list(pairs), dict.fromkeys(groups, 1))

    def _measures(self, selection: Selection) -> dict[str, Measure]:
        seats, pairs, inside = selection.seats, selection.pairs, selection.inside
        programs, meter = Programs(self._meter), self._meter
        small, large = _by_size(MESSAGES)
        found = {
            "small messages": Measure(lambda: self._messages(pairs.measured, small)),
            "large messages": Measure(lambda: self._messages(pairs.measured, large), tolerance=0.15),
            "bursts of messages": Measure(lambda: self._overheads(pairs.measured)),
        }
        for (num_nodes, each), several in selection.groups.items():
            where = f"{each} of each of {num_nodes} nodes" if num_nodes > 1 else f"{each} of a node"
            for what, sizes, tolerance in zip(("small", "large"), _by_size(SUMS), (0.3, 0.15)):
                act = lambda several=several, sizes=sizes: self._sums(several, sizes)  # noqa: E731
                found[f"{what} sums of {where}"] = Measure(act, tolerance)
        if inside:
            found["messages at once"] = Measure(lambda: self._inside(inside), tolerance=0.15)
        if len(seats.nodes) > 1:
            found["what nodes send at once"] = Measure(
                lambda: self._adapters(seats, selection.nodes.measured), tolerance=0.15
            )
        if len(seats.nodes) > 2:
            network = {NETWORK: selection.everything_out}
            found["what all nodes send at once"] = Measure(lambda: self._rates(network), tolerance=0.15)
        return found | {
            "messages in a program": Measure(lambda: dict(zip(("wall", "thread"), programs.message()))),
            "a sum's cost to its thread": Measure(lambda: {"sum": meter.thread_of_sum()}),
            "what an iteration costs": Measure(lambda: {"iteration": programs.iteration()}),
            "copies of gradients": Measure(lambda: {"copying": programs.copying()}, tolerance=0.15),
            "compute beside a sum": Measure(lambda: {"exposed": programs.exposed(4 * MIB)}, 0.15, absolute=True),
        }

    def _messages(self, pairs: Iterable[Pair], sizes: Iterable[int]) -> Found:
        sizes = list(sizes)
        return self._of_pairs(
            {message(a, b, size): self._meter.one_way(a, b, size) for a, b in pairs for size in sizes}
        )

    def _overheads(self, pairs: Iterable[Pair]) -> Found:
        return self._of_pairs({overhead(a, b): self._meter.overhead(a, b) for a, b in pairs})

    def _of_pairs(self, own: dict[str, float]) -> Found:
        """Of each number what the first rank of its pair has: others have nothing."""
        found = self._transport.exchange(own)
        return {name: max(each[name] for each in found) for name in own}

    def _rates(self, at_once: dict[str, list[Pair]]) -> Found:
        return {name: self._meter.rate_together(messages, 4 * MIB) for name, messages in at_once.items()}

    def _inside(self, at_once: dict[str, list[list[Pair]]]) -> Found:
        """The rates inside one node, while all others do the same."""
        rates = self._rates({name: [pair for pairs in nodes for pair in pairs] for name, nodes in at_once.items()})
        return {name: rate / len(at_once[name]) for name, rate in rates.items()}

    def _adapters(self, seats: Seats, nodes: Iterable[int]) -> Found:
        """The rates at which all ranks of a node send to another node at once, and at which they send and receive."""
        found: dict[str, list[Pair]] = {}
        for node in nodes:
            messages = out_of(seats, node)
            found |= {one_way_out(node): messages, out_and_in(node): both_ways(messages)}
        return self._rates(found)

    def _sums(self, groups: list[tuple[int, ...]], sizes: Iterable[int]) -> Found:
        return {all_reduce(groups[0], size): self._meter.all_reduce(groups, size) for size in sizes}


def _agree(numbers: list[float]) -> bool:
    return max(numbers) <= AGREE * min(numbers)


def _by_size(sizes: Iterable[int]) -> tuple[list[int], list[int]]:
    """The small sizes, and the large ones."""
    sizes = list(sizes)
    return [size for size in sizes if size < MIB], [size for size in sizes if size >= MIB]
