"""Numbers that are measured until they repeat themselves, and the curves that they make."""

import itertools
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, ClassVar

import pytest
import torch

import soapstone as ss
from soapstone.runtime import ThreadTransport
from soapstone.runtime.calibration import Calibrator, assembly, calibrator, passes
from soapstone.runtime.calibration.assembly import Measured, _growing, assemble
from soapstone.runtime.calibration.classes import Representatives, classes_of_nodes, classes_of_pairs
from soapstone.runtime.calibration.meter import SMALL, Meter
from soapstone.runtime.calibration.passes import LEAST, MOST, Measure, measured
from soapstone.runtime.calibration.seats import Seats
from soapstone.runtime.calibration.together import NETWORK, NODE, PORT, Selection, groups_of, inside_at_once, out_of
from soapstone.topology import Device


def counted(values: Iterator[float], seen: list[float]) -> Measure:
    def act() -> dict[str, float]:
        seen.append(next(values))
        return {"it": seen[-1]}

    return Measure(act)


def test_what_repeats_itself_is_measured_a_few_times() -> None:
    seen: list[float] = []
    numbers = measured({"it": counted(itertools.cycle([1.0, 1.1, 0.9]), seen)}, lambda share, what: None)
    assert (len(seen), numbers["it"], numbers.unsure) == (LEAST, 1.0, [])


def test_one_bad_pass_is_measured_again_and_outvoted() -> None:
    seen: list[float] = []
    values = itertools.chain([1.0, 20.0], itertools.repeat(1.05))
    numbers = measured({"it": counted(values, seen)}, lambda share, what: None)
    assert LEAST < len(seen) < MOST
    assert (numbers["it"], numbers.unsure) == (1.05, [])


def test_what_never_repeats_itself_is_unsure() -> None:
    seen: list[float] = []
    numbers = measured(
        {"it": counted(itertools.cycle([1.0, 2.0, 4.0]), seen), "that": Measure(lambda: {"that": 1.0})},
        lambda share, what: None,
    )
    assert (len(seen), numbers.unsure, len(numbers.samples["that"])) == (MOST, ["it"], LEAST)


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        ([1, 2, 3], [1, 2, 3]),
        ([1, 4, 2], [1, 3, 3]),
        ([9, 1, 2], [4, 4, 4]),
        ([5, 5, 6], [5, 5, 6]),
    ],
)
def test_a_curve_grows(seconds: list[float], expected: list[int]) -> None:
    found = _growing({size: ns * 1e-9 for size, ns in zip((10, 20, 30), seconds)})
    assert found == tuple(zip((10, 20, 30), expected))


def seats(*ranks_of_nodes: int) -> Seats:
    nodes = [node for node, count in enumerate(ranks_of_nodes) for _ in range(count)]
    return Seats(tuple(Device(f"gpu{rank}", "h200", node, 1) for rank, node in enumerate(nodes)))


def test_sums_are_measured_inside_nodes_across_them_and_among_all() -> None:
    assert groups_of(seats(2)) == {(1, 2): [(0, 1)]}
    assert groups_of(seats(6)) == {(1, 2): [(0, 1)], (1, 4): [(0, 1, 2, 3)], (1, 6): [(0, 1, 2, 3, 4, 5)]}
    assert groups_of(seats(2, 2)) == {(2, 1): [(0, 2)], (1, 2): [(0, 1), (2, 3)], (2, 2): [(0, 1, 2, 3)]}
    assert groups_of(seats(1, 1, 1)) == {(2, 1): [(0, 1)], (3, 1): [(0, 1, 2)]}
    assert list(groups_of(seats(4, 4))) == [(2, 1), (1, 2), (2, 2), (1, 4), (2, 4)]
    found = groups_of(seats(1, 3))
    assert found[1, 3] == [(1, 2, 3)]
    assert found[2, 2] == [(0, 1, 2)]


def test_what_talks_at_once() -> None:
    assert inside_at_once(seats(1)) == inside_at_once(seats(1, 1)) == {}
    assert inside_at_once(seats(2, 2)) == {NODE: [[(0, 1), (1, 0)], [(2, 3), (3, 2)]]}
    found = inside_at_once(seats(3))
    assert found[PORT] == [[(0, 1), (1, 0), (0, 2), (2, 0)]]
    assert len(found[NODE][0]) == 6
    assert out_of(seats(2, 2), 1) == [(2, 0), (3, 1)]
    assert out_of(seats(3, 2), 0) == [(0, 3), (1, 4), (2, 3)]


def test_equivalent_pairs_are_one_class() -> None:
    pairs = [each.members for each in classes_of_pairs(seats(4, 4))]
    assert [len(members) for members in pairs] == [12, 16]
    assert [each.compared for each in classes_of_pairs(seats(4, 4))] == [((0, 1), (4, 7)), ((0, 4), (3, 7))]
    assert [each.compared for each in classes_of_nodes(seats(4, 4))] == [(0, 1)]
    assert len(classes_of_pairs(seats(*[8] * 8))) == 2
    assert len(classes_of_pairs(seats(2, 3))) == 3


def numbers(
    alone: float = 1e9, out: float = 1e9, both: float = 2e9, inside: float = 4e9, all_nodes: float = 1e12
) -> Any:
    """What a quiet machine would measure: bytes/s of a message between nodes, of all ranks of a node one way and both
    ways, of a message inside a node, and of all nodes."""

    class Known(dict[str, float]):
        unsure: ClassVar[list[str]] = []

        def __missing__(self, name: str) -> float:
            words = name.split()
            if name == NETWORK:
                return all_nodes
            if name in (PORT, NODE):
                return 2 * inside
            if "send at once" in name:
                return out
            if "receive from it" in name:
                return both
            if name.startswith("each of a burst"):
                return 1e-5
            if name.startswith("a sum of"):
                return int(words[3].replace(",", "")) / out
            across = int(words[4]) // 2 != int(words[6]) // 2
            return 3e-5 + int(words[0].replace(",", "")) / (alone if across else inside)

    return Known(thread=2e-5, sum=1e-5, iteration=1e-4, copying=1e10, exposed=0.0, wall=0.0)


def assembled(nodes: int, found: Any, agree: bool = True) -> ss.Topology:
    where = seats(*[2] * nodes)
    pairs = Representatives(classes_of_pairs(where), lambda each: agree)
    adapters = Representatives(classes_of_nodes(where), lambda each: agree)
    selection = Selection(where, pairs, adapters, groups_of(where), inside_at_once(where))
    return assemble(Measured(selection, found, on_cpu=False)).topology


def arrival(topology: ss.Topology, messages: list[tuple[int, int]], size: int) -> float:
    """Seconds until the busiest resource has passed all of these messages."""
    held: Counter[int] = Counter()
    for a, b in messages:
        holds, _ = topology.native.transfer(a, b, size)
        for resource, duration in holds:
            held[resource] += duration
    return max(held.values()) * 1e-9


def test_ranks_of_a_node_share_its_adapter() -> None:
    topology = assembled(2, numbers(alone=0.9e9))
    assert arrival(topology, [(0, 2)], 16 << 20) == pytest.approx((16 << 20) / 0.9e9, rel=0.01)
    assert arrival(topology, [(0, 2), (1, 3)], 16 << 20) == pytest.approx(2 * (16 << 20) / 1e9, rel=0.01)
    assert arrival(topology, [(0, 2), (3, 1)], 16 << 20) == pytest.approx((16 << 20) / 0.9e9, rel=0.01)  # both ways
    assert arrival(topology, [(0, 1)], 16 << 20) == pytest.approx((16 << 20) / 4e9, rel=0.01)


def test_an_adapter_that_sends_or_receives_is_shared_both_ways() -> None:
    topology = assembled(2, numbers(both=1.1e9))
    assert arrival(topology, [(0, 2), (3, 1)], 16 << 20) == pytest.approx(2 * (16 << 20) / 1.1e9, rel=0.01)


def test_each_rank_with_an_adapter_of_its_own_is_not_slowed_by_others() -> None:
    topology = assembled(2, numbers(out=2e9, both=4e9))
    assert arrival(topology, [(0, 2), (1, 3)], 16 << 20) == pytest.approx((16 << 20) / 1e9, rel=0.01)


def test_a_network_that_passes_less_than_its_adapters_is_a_bus() -> None:
    assert [bus.name for bus in assembled(4, numbers()).buses] == [f"node {node}" for node in range(4)]
    slow = assembled(4, numbers(all_nodes=4e9))
    assert arrival(slow, [(0, 2), (2, 4), (4, 6), (6, 0)], 16 << 20) == pytest.approx(4 * (16 << 20) / 4e9, rel=0.01)


def test_sums_over_numbers_of_nodes_that_were_not_measured_take_those_of_the_next() -> None:
    sums = {(each.members, each.nodes): each.times for each in assembled(4, numbers()).sums}
    assert set(sums) == {(2, 1), (2, 2), (4, 2), (4, 3), (8, 3), (4, 4), (8, 4)}
    assert sums[8, 3] == sums[8, 4]


def test_if_pairs_differ_each_is_measured() -> None:
    where = seats(2, 2)
    classes = classes_of_pairs(where)
    assert Representatives(classes, lambda each: True).measured == [(0, 1), (0, 2)]
    assert len(Representatives(classes, lambda each: False).measured) == 6
    assert len(assembled(2, numbers(), agree=False).links) == 2 + 4 + 2


def test_ranks_that_take_no_part_in_a_sum_keep_count_of_messages() -> None:
    def measure(rank: int, transport: ThreadTransport) -> list[float]:
        meter = Meter(transport, torch.device("cpu"))
        transport.open([(1, 2)], {(0, 1): 1, (0, 1, 2): 1})
        together = meter.rate_together([(1, 2), (2, 1)], SMALL)
        return [meter.all_reduce([(0, 1)], SMALL), meter.one_way(1, 2, SMALL), meter.thread_of_sum(), together]

    found = ss.run_threads(3, measure)
    assert min(rank[0] for rank in found) > 0
    assert len({rank[3] for rank in found}) == 1
    assert found[1][1] > 0


@pytest.mark.parametrize(
    ("ranks_of_nodes", "agree"),
    [
        ((2, 2), 1e9),
        pytest.param((2, 2), 0.0, marks=pytest.mark.long),
        pytest.param((1, 1, 1), 1e9, marks=pytest.mark.long),
    ],
)
def test_ranks_on_several_nodes_are_calibrated(
    ranks_of_nodes: tuple[int, ...], agree: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    few = (SMALL, 1 << 20, 2 << 20)  # bytes, in place of up to 128 MB
    for module in (calibrator, assembly):
        monkeypatch.setattr(module, "MESSAGES", few)
        monkeypatch.setattr(module, "SUMS", few)
        monkeypatch.setattr(module, "LARGE", few[-1])
    where = replace_kind(seats(*ranks_of_nodes), "cpu")
    monkeypatch.setattr(calibrator, "find_seats", lambda transport, place: where)
    monkeypatch.setattr(calibrator, "AGREE", agree)  # 0: each pair and node is measured
    monkeypatch.setattr(passes, "MOST", LEAST)

    def run(rank: int, transport: ThreadTransport) -> ss.Topology:
        return Calibrator(transport, torch.device("cpu")).run().topology

    found = ss.run_threads(len(where.devices), run)
    assert all(topology == found[0] for topology in found)
    assert {(each.members, each.nodes) for each in found[0].sums} == {
        (len(groups[0]), nodes) for (nodes, _), groups in groups_of(where).items()
    }
    adapters = [link for link in found[0].links if link.target == "network"]
    assert len(adapters) == len(ranks_of_nodes)
    assert len(found[0].links) == len(where.pairs_inside()) + len(where.devices) + len(adapters)


def replace_kind(where: Seats, kind: str) -> Seats:
    return Seats(tuple(replace(device, kind=kind) for device in where.devices))
