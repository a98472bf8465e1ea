"""Collectives against tables worked out by hand, and the presets against figures that others measured."""

from dataclasses import replace
from itertools import product
from typing import Any

import pytest

from soapstone.topology import Link, Topology, preset_names
from tests.support.machines import (
    HOST,
    NETWORK,
    all_reduce,
    as_one_node,
    duration,
    make_device,
    named,
    two_nodes,
    two_rails,
)

# Those whose sums take the best of the patterns.
PATTERNED = [name for name in preset_names() if not Topology.parse(f"{name}:1x2").sums]


def one_node(**network: Any) -> Topology:
    """Ring and tree are all that there is inside a node."""
    return as_one_node(two_nodes(**network))


# A ring over a0 a1 b0 b1 crosses every link once each way and moves 2*3/4*100 = 150 bytes over each:
# hosts 2 + 150, network 10 + 300. Its 6 hops count 50 ns each, the latency between nodes.
RING = {
    **dict.fromkeys(("a0→A", "A→a1", "a1→A", "A→net", "net→B", "B→b0", "b0→B", "B→b1", "b1→B", "B→net"), 152),
    **dict.fromkeys(("net→A", "A→a0"), 152),
} | dict.fromkeys(("A→net", "net→B", "B→net", "net→A"), 310)


@pytest.mark.parametrize("devices", [[0, 1, 2, 3], [3, 0, 2, 1], [2, 1, 3, 0]])
def test_ring_comes_in_one_order(devices: list[int]) -> None:
    assert all_reduce(one_node(), devices, 100) == (RING, 300)


def test_ring_runs_node_by_node() -> None:
    """Three members and two, by turns; a ring that leaves A once carries 2*4/5*100 bytes: 10 + 320."""
    devices = tuple(make_device(f"{'ab'[i % 2]}{i}", i % 2) for i in range(5))
    links = tuple(Link(device.name, device.name[0].upper(), **HOST) for device in devices)
    topology = Topology(devices, (*links, *(Link(name, "net", **NETWORK) for name in "AB")))
    assert all_reduce(topology, [0, 1, 2, 3, 4], 100)[0]["A→net"] == 330


def test_ring_crosses_a_shared_link_twice() -> None:
    holds, latency = all_reduce(one_node(duplex=False), [0, 1, 2, 3], 100)
    assert (holds["A↔net"], holds["B↔net"], holds["a0→A"]) == (610, 610, 152)
    assert latency == 300


def test_without_overlap_a_ring_holds_every_member() -> None:
    holds, latency = all_reduce(two_nodes(exposed=1.0), [0, 1, 2, 3], 100)
    assert (holds, latency) == (RING | dict.fromkeys(("a0", "a1", "b0", "b1"), 310), 300)
    assert "a0" not in all_reduce(two_nodes(exposed=1.0), [0, 1], 100)[0]


def test_ring_rounds_up_once_a_link() -> None:
    star = Topology(tuple(make_device(f"d{i}") for i in range(3)), tuple(Link(f"d{i}", "hub", 1e9) for i in range(3)))
    holds, _ = all_reduce(star, [0, 1, 2], 10)
    assert set(holds.values()) == {14}  # 2*2/3*10 = 13.3


def test_ring_between_two_devices_sends_every_byte_once() -> None:
    assert all_reduce(one_node(), [0, 1], 100) == (dict.fromkeys(("a0→A", "A→a1", "a1→A", "A→a0"), 102), 20)


# One byte: the ring costs 6*50 + (10 + 3) = 313. The tree has the edges a1-a0, b0-a0, b1-b0: two rounds up, two down,
# so 4*50 + 3*(10 + 2) = 236, and 12 for its longest hold. a0's and b0's links carry two edges each: 2 + 2*1.
def test_tree_wins_for_small_messages() -> None:
    assert all_reduce(one_node(), [0, 1, 2, 3], 1) == (
        {
            **dict.fromkeys(("a0→A", "A→a0", "b0→B", "B→b0"), 4),
            **dict.fromkeys(("a1→A", "A→a1", "b1→B", "B→b1"), 3),
            **dict.fromkeys(("A→net", "net→A", "B→net", "net→B"), 12),
        },
        236,
    )


def test_ring_or_tree_is_the_smaller_closed_form() -> None:
    # Ring 300 + 10 + ceil(3x), tree 200 + 4*(10 + 2x): equal at x = 14, where the ring is taken.
    assert [all_reduce(one_node(), [0, 1, 2, 3], x)[1] for x in (13, 14, 15)] == [200 + 3 * 36, 300, 300]


# Two nodes of two, 1000 bytes. Levels: the ring inside carries 2*1/2*1000, so 2 + 1000; a0 and b0 exchange halves, 10 +
# 2*500; 2 hops of 10 ns inside and 2 of 40 across. Rails take 6*40 and 10 + 2*750, the ring 6*40 and 10 + 2*1500.
INSIDE = ("a0→A", "A→a0", "a1→A", "A→a1", "b0→B", "B→b0", "b1→B", "B→b1")
ADAPTERS = ("a0→net", "net→a0", "a1→net", "net→a1", "b0→net", "net→b0", "b1→net", "net→b1")


@pytest.mark.parametrize("devices", [[0, 1, 2, 3], [3, 0, 2, 1]])
def test_levels_between_two_nodes(devices: list[int]) -> None:
    holds = dict.fromkeys(INSIDE, 1002) | dict.fromkeys(ADAPTERS, 1010)
    assert all_reduce(two_rails(), devices, 1000) == (holds, 100)


def test_levels_share_one_adapter() -> None:
    # Both halves cross it, 10 + 2*(50 + 50); a0's link carries the ring and a half, 2 + 100 + 50.
    holds, latency = all_reduce(two_nodes(), [0, 1, 2, 3], 100)
    assert (holds["A→net"], holds["a0→A"], latency) == (210, 152, 20 + 100)


# Four nodes of two, x bytes. Rails: 14*40 + 10 + 2*(7/8*x). Levels: of the trees 0-2, 2-1, 2-3 and 3-1, 1-2, 1-0 nodes
# 1 and 2 have four edges of x/4 bytes, the others two: 2*10 + 4*40 + 10 + 2*x. Equal at 1520, where rails are taken.
def test_rails_or_levels_is_the_smaller_closed_form() -> None:
    found = [all_reduce(two_rails(4), list(range(8)), x)[1] for x in (1519, 1520, 1521)]
    assert found == [180, 560, 560]


def test_rails_load_all_adapters_alike() -> None:
    holds, latency = all_reduce(two_rails(4), list(range(8)), 8000)
    assert {ns for name, ns in holds.items() if "net" in name} == {10 + 2 * 7000}
    assert {ns for name, ns in holds.items() if "net" not in name} == {2 + 7000}
    assert (len(holds), latency) == (32, 560)


def test_levels_load_inner_nodes_of_the_trees_twice_as_much() -> None:
    holds, _ = all_reduce(two_rails(4), list(range(8)), 800)
    assert [holds[f"{node}1→net"] for node in "abcd"] == [10 + 800, 10 + 1600, 10 + 1600, 10 + 800]
    assert {ns for name, ns in holds.items() if "net" not in name} == {2 + 800}


def test_levels_over_an_odd_number_of_nodes() -> None:
    # The trees 0-2, 2-1 and 1-0, 0-2: three edges of x/4 at nodes a and c, two at b.
    holds, latency = all_reduce(two_rails(3), list(range(6)), 400)
    assert [holds[f"{node}0→net"] for node in "abc"] == [10 + 600, 10 + 400, 10 + 600]
    assert latency == 2 * 10 + 4 * 40


# A star of four, 1000 bytes. In the switch: 2 + 5/4*1000 at 1 byte/ns, 2 hops. Ring: 2 + 2*3/4*1000, 6 hops.
def star(sharp: float) -> Topology:
    devices = tuple(make_device(f"d{i}") for i in range(4))
    return Topology(devices, tuple(Link(device.name, "hub", **HOST, sharp=sharp) for device in devices))


def test_a_switch_sums_where_that_is_faster() -> None:
    ends = [f"d{i}→hub" for i in range(4)] + [f"hub→d{i}" for i in range(4)]
    assert all_reduce(star(1e9), [0, 1, 2, 3], 1000) == (dict.fromkeys(ends, 1252), 20)
    assert all_reduce(star(0.5e9), [0, 1, 2, 3], 1000) == (dict.fromkeys(ends, 1502), 60)
    assert set(all_reduce(star(1e9), [0, 1], 1000)[0].values()) == {1002}  # ring; the switch would take 3/2


def test_switches_sum_inside_nodes() -> None:
    # 2 + 3/2*1000/2 inside, where a ring takes 1002; 10 + 500/4 across.
    topology = two_rails(inside={"sharp": 2e9}, adapter={"summing": 4e9})
    holds = dict.fromkeys(INSIDE, 752) | dict.fromkeys(ADAPTERS, 135)
    assert all_reduce(topology, [0, 1, 2, 3], 1000) == (holds, 100)


def test_a_link_may_lead_to_a_switch_that_sums_and_to_the_network() -> None:
    # It carries 3/2*1000 bytes at 4 bytes/ns for the switch, and a half of 500 at 1; 10 + 2*500/4 on the network.
    topology = two_nodes(summing=4e9)
    links = tuple(replace(link, sharp=4e9) if link.target != "net" else link for link in topology.links)
    holds, latency = all_reduce(replace(topology, links=links), [0, 1, 2, 3], 1000)
    assert (holds["a0→A"], holds["A→net"], latency) == (2 + 500 + 375, 260, 20 + 100)


@pytest.mark.parametrize("half", ["reduce_scatter", "all_gather"])
def test_halves_of_an_all_reduce(half: str) -> None:
    def run(topology: Topology, devices: list[int]) -> tuple[dict[str, int], int]:
        return named(topology, getattr(topology.native, half)(devices, 1000))

    holds, latency = run(star(1e9), [0, 1, 2, 3])
    assert (set(holds.values()), latency) == ({2 + 750}, 3 * 10)
    # Levels: 1/2 inside, 1/2 of a half across, 1 hop each. Rails would take 3*40 + 10 + 2*375.
    levels = dict.fromkeys(INSIDE, 2 + 500) | dict.fromkeys(ADAPTERS, 10 + 2 * 250)
    assert run(two_rails(), [0, 1, 2, 3]) == (levels, 10 + 40)
    assert run(two_rails(), [0, 2])[1] == 40  # a ring
    # Inside is the bottleneck: rails carry 3/4*1/2 of the bytes there, levels 1/2.
    rails = run(two_rails(inside={"summing": 1e8}), [0, 1, 2, 3])
    assert (rails[0]["a0→A"], rails[0]["a0→net"], rails[1]) == (2 + 3750, 10 + 750, 3 * 40)
    assert run(two_rails(), [3]) == ({}, 1)


SIZES = [1, 1000, 10**5, 10**7, 10**9]


@pytest.mark.parametrize("preset", PATTERNED)
def test_knowing_nodes_never_makes_an_all_reduce_slower(preset: str) -> None:
    for shape, size in product(("2x2", "4x4", "3x5", "2x8"), SIZES):
        topology = Topology.parse(f"{preset}:{shape}")
        members = list(range(topology.num_devices))
        assert duration(topology.native.all_reduce(members, size)) <= duration(
            as_one_node(topology).native.all_reduce(members, size)
        )


@pytest.mark.parametrize("devices", [[0, 4, 8, 12], [1, 2], [0, 1, 2, 3], [0, 1, 4], [0, 1, 4, 8, 9]], ids=str)
def test_a_group_inside_a_node_or_of_unequal_shares_has_a_ring_or_a_tree(devices: list[int]) -> None:
    for preset, size in product(PATTERNED, SIZES):
        topology = Topology.parse(f"{preset}:4x4")
        assert topology.native.all_reduce(devices, size) == as_one_node(topology).native.all_reduce(devices, size)


@pytest.mark.parametrize("text", ["cpu:2x2", "measured"])
def test_gloo_and_measured_links_have_rings_and_trees(text: str) -> None:
    """A link that calibration measured between nodes does not say which adapter it goes by."""
    pairs = [("a0", "a1"), ("a0", "b0"), ("a0", "b1"), ("a1", "b0"), ("a1", "b1"), ("b0", "b1")]
    measured = Topology(two_nodes().devices, tuple(Link(*pair, bandwidth=1e9, latency=5) for pair in pairs))
    topology = measured if text == "measured" else Topology.parse(text)
    for size in SIZES:
        own = topology.native.all_reduce([0, 1, 2, 3], size)
        assert own == as_one_node(topology).native.all_reduce([0, 1, 2, 3], size)


# By nccl-tests; the presets say where the figures are from. Bandwidths of links were set by those of one node and one
# adapter (192 is eight of them), so that four nodes of H100 are the check.
BUS = [("h100:1x2", 367.5), ("h100:1x8", 480), ("h100:4x8", 375), ("a100:1x8", 232.5), ("a100:4x8", 192)]


@pytest.mark.parametrize(("text", "published"), BUS)
def test_bus_bandwidths_are_those_that_were_published(text: str, published: float) -> None:
    topology, size = Topology.parse(text), 8 * 2**30
    n = topology.num_devices
    time = duration(topology.native.all_reduce(list(range(n)), size))
    assert 2 * (n - 1) / n * size / time == pytest.approx(published, rel=0.02)


@pytest.mark.parametrize(("num_devices", "published"), [(5, 258), (6, 265), (7, 270), (8, 273)])
def test_nvlink_sharp_is_as_fast_as_was_published(num_devices: int, published: float) -> None:
    time = duration(Topology.parse("h100:1x8").native.all_reduce(list(range(num_devices)), 2**32))
    assert 2**32 / time == pytest.approx(published, rel=0.02)


def test_an_all_reduce_uses_all_eight_adapters() -> None:
    # 1 GiB: one ring took 2*31/32 of it through one adapter of 50 GB/s, 41.9 ms. Nodes 1 and 2 of the trees now send
    # and receive 2/8 of it by each of 47.5 GB/s.
    topology = Topology.parse("h100:4x8")
    holds, latency = all_reduce(topology, list(range(32)), 2**30)
    assert holds["gpu8→network"] == -(-(2**30) * 10 // (4 * 475)) == 5_651_273
    assert latency == 2 * 2000 + 4 * 4000
