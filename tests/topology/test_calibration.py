"""Numbers that are measured until they repeat themselves, and the curves that they make."""

import itertools
from collections.abc import Iterator

import pytest
import torch

import soapstone as ss
from soapstone.runtime import ThreadTransport
from soapstone.runtime.calibration.calibrator import NODE, PORT, _groups, _growing, _on_buses, _shared
from soapstone.runtime.calibration.meter import SMALL, Meter
from soapstone.runtime.calibration.passes import LEAST, MOST, Measure, measured
from soapstone.topology import Bus, Device, Link


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


def test_sums_are_measured_inside_nodes_across_them_and_among_all() -> None:
    assert _groups([0, 0]) == [(0, 1)]
    assert _groups([0] * 6) == [(0, 1), (0, 1, 2, 3), (0, 1, 2, 3, 4, 5)]
    assert _groups([0, 0, 1, 1]) == [(0, 1), (0, 2), (0, 1, 2, 3)]


def test_what_ranks_of_a_node_share() -> None:
    assert _shared([0]) == _shared([0, 1]) == {}
    assert _shared([0, 0, 1, 1]) == {NODE: [(0, 1)]}
    assert _shared([0, 0, 0]) == {PORT: [(0, 1), (0, 2)], NODE: [(0, 1), (0, 2), (1, 2)]}
    devices = [Device(name, "cpu", node, 1) for name, node in (("a", 0), ("b", 0), ("c", 1))]
    links, buses = _on_buses(devices, [Link("a", "b", 1e9), Link("b", "c", 1e9)], {PORT: 2e9, NODE: 3e9})
    assert [link.buses for link in links] == [("a's port", "b's port", "node 0"), ()]
    assert buses == (Bus("a's port", 2e9), Bus("b's port", 2e9), Bus("node 0", 3e9))


@pytest.mark.timeout(60)
def test_ranks_that_take_no_part_in_a_sum_keep_count_of_messages() -> None:
    def measure(rank: int, transport: ThreadTransport) -> list[float]:
        meter = Meter(transport, torch.device("cpu"))
        transport.open([(1, 2)], {(0, 1): 1, (0, 1, 2): 1})
        together = meter.rate_together([(1, 2)], SMALL)
        return [meter.all_reduce((0, 1), SMALL), meter.one_way(1, 2, SMALL), meter.thread_of_sum(), together]

    found = ss.run_threads(3, measure)
    assert min(rank[0] for rank in found) > 0
    assert len({rank[3] for rank in found}) == 1
    assert found[1][1] > 0
