"""What messages hold, against tables worked out by hand; presets, YAML files and errors."""

import math
import os
import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import soapstone as ss
from soapstone import _core
from soapstone.errors import SoapstoneError, TopologyError
from soapstone.topology import Bus, Device, Link, Sum, Topology, about_presets, preset_names
from soapstone.topology.detection import joined, kind_of, nvlinks
from tests.support.chains import Launching, graph_of
from tests.support.machines import GIB, all_reduce, make_device, transfer, two_nodes


def test_resources_are_devices_then_link_directions() -> None:
    assert two_nodes().resources == [
        *("a0", "a1", "b0", "b1"),
        *("a0→A", "A→a0", "a1→A", "A→a1", "b0→B", "B→b0", "b1→B", "B→b1"),
        *("A→net", "net→A", "B→net", "net→B"),
    ]
    assert two_nodes(duplex=False).resources[-2:] == ["A↔net", "B↔net"]
    for topology in (two_nodes(), two_nodes(duplex=False)):
        assert topology.native.num_resources == len(topology.resources)
        assert topology.native.num_devices == topology.num_devices == 4


def test_transfer_inside_a_node() -> None:
    assert transfer(two_nodes(), 0, 1, 100) == ({"a0→A": 102, "A→a1": 102}, 10)


def test_transfer_between_nodes() -> None:
    holds = {"a0→A": 102, "A→net": 210, "net→B": 210, "B→b1": 102}
    assert transfer(two_nodes(), 0, 3, 100) == (holds, 50)


def test_shared_network_links_are_one_resource_both_ways() -> None:
    topology = two_nodes(duplex=False)
    assert transfer(topology, 0, 3, 100) == ({"a0→A": 102, "A↔net": 210, "B↔net": 210, "B→b1": 102}, 50)
    assert transfer(topology, 3, 0, 100) == ({"b1→B": 102, "B↔net": 210, "A↔net": 210, "A→a0": 102}, 50)


def test_without_overlap_a_transfer_holds_both_ends_for_its_slowest_link() -> None:
    topology = two_nodes(exposed=1.0)
    holds = {"a0→A": 102, "A→net": 210, "net→B": 210, "B→b1": 102, "a0": 210, "b1": 210}
    assert transfer(topology, 0, 3, 100) == (holds, 50)
    assert transfer(topology, 0, 1, 100) == ({"a0→A": 102, "A→a1": 102}, 10)  # these links overlap


def test_holds_are_rounded_up_and_exact() -> None:
    def hold(bandwidth: float, num_bytes: int) -> int:
        topology = Topology((make_device("a"), make_device("b")), (Link("a", "b", bandwidth),))
        return transfer(topology, 0, 1, num_bytes)[0]["a→b"]

    assert hold(3e9, 1) == 1
    assert hold(3e9, 3) == 1
    assert hold(3e9, 4) == 2
    assert hold(3e9, 3 * 10**15) == 10**15
    assert hold(3e9, 3 * 10**15 + 1) == 10**15 + 1  # doubles lose this byte


def test_a_message_takes_at_least_one_nanosecond() -> None:
    topology = Topology((make_device("a"), make_device("b")), (Link("a", "b", 1e9),))
    assert transfer(topology, 0, 1, 0) == ({"a→b": 0}, 1)
    assert transfer(topology, 0, 0, 100) == ({}, 1)
    assert all_reduce(topology, [1], 100) == ({}, 1)
    assert all_reduce(topology, [0, 1], 0) == ({"a→b": 0, "b→a": 0}, 1)


def test_route_takes_the_least_time_then_the_fewest_hops_then_the_smallest_vertex() -> None:
    devices = tuple(make_device(name) for name in "abcd")

    def route(*links: Link) -> list[str]:
        topology = Topology(devices, links)
        return [topology.resources[resource] for resource in topology.native.route(0, 3)]

    chain = [Link("a", "b", 1e9), Link("b", "d", 1e9), Link("a", "c", 1e9), Link("c", "d", 1e9)]
    assert route(*chain) == ["a→b", "b→d"]
    assert route(*reversed(chain)) == ["a→b", "b→d"]
    assert route(replace(chain[0], latency=1), *chain[1:]) == ["a→c", "c→d"]
    assert route(*chain, Link("a", "d", 1e9)) == ["a→d"]
    assert route(*chain, Link("a", "d", 1e8)) == ["a→b", "b→d"]
    two_links_long = 2 * math.ceil(2**20)
    assert route(*chain, Link("a", "d", 1e9, latency=two_links_long - 2**20)) == ["a→d"]
    assert route(*chain, Link("a", "d", 1e9, latency=two_links_long - 2**20 + 1)) == ["a→b", "b→d"]


def test_native_rejects_what_is_out_of_range() -> None:
    native = two_nodes().native
    with pytest.raises(ValueError, match="no device 4"):
        native.transfer(0, 4, 1)
    with pytest.raises(ValueError, match="bytes out of range: -1"):
        native.transfer(0, 1, -1)
    with pytest.raises(ValueError, match="at least one device"):
        native.all_reduce([], 1)
    with pytest.raises(ValueError, match="device twice"):
        native.all_reduce([1, 0, 1], 1)
    with pytest.raises(ValueError, match="longer than 2\\^53 ns"):
        Topology((make_device("a"), make_device("b")), (Link("a", "b", 1),)).native.transfer(0, 1, 2**40)


def test_native_checks_what_it_is_made_of() -> None:
    good: dict[str, Any] = {"source": 0, "target": 1, "bandwidth": 1e9, "latency": 0, "overhead": 0}
    good |= {"duplex": True, "exposed": 0.0, "summing": 1e9, "sharp": 0.0, "times": _core.Curve([]), "buses": []}
    with pytest.raises(ValueError, match="device 1 is not connected"):
        _core.Topology(2, 0, [0, 0], [], [], [], [])
    with pytest.raises(ValueError, match="at least one device"):
        _core.Topology(0, 0, [], [], [], [], [])
    with pytest.raises(ValueError, match="one entry a device"):
        _core.Topology(2, 0, [0], [], [], [], [])
    for change in (
        {"target": 2},
        {"target": 0},
        {"bandwidth": 0.0},
        {"bandwidth": math.nan},
        {"summing": 0.0},
        {"sharp": 0.5},
        {"exposed": 1.5},
        {"latency": -1},
        {"buses": [0]},
    ):
        with pytest.raises(ValueError, match="a link"):
            _core.Topology(2, 0, [0, 0], [_core.Link(**good | change)], [], [], [])
    with pytest.raises(ValueError, match="a host's time"):
        _core.Topology(2, 0, [0, 0], [_core.Link(**good)], [_core.Host(0, -1, 0, 0, 0, False)] * 2, [], [])
    with pytest.raises(ValueError, match="a bus's bandwidth"):
        _core.Topology(2, 0, [0, 0], [_core.Link(**good)], [], [], [0.5])


@pytest.mark.parametrize("kind", ["cpu", "h100"])
@pytest.mark.parametrize("exposed", [0, 0.25, 1])
def test_a_message_costs_the_threads_at_its_ends(kind: str, exposed: float) -> None:
    """A CPU is kept busy; a GPU's host launches, and the GPU is kept busy only by what is exposed."""
    ends = [Device(name, kind, 0, 2**30, send=300, receive=200, sum=700) for name in "ab"]
    native = Topology(tuple(ends), (Link("a", "b", 1e9, latency=5, exposed=exposed),)).native
    least = round(100 * exposed)  # of the link, which takes 1 ns for each byte
    own = {"cpu": [(0, least + 300), (1, least + 200)], "h100": [(0, least), (1, least)]}[kind]
    assert native.transfer(0, 1, 100) == ([(2, 100), *own], 5)
    assert native.transfer(1, 0, 100)[0][1:] == [(1 - device, time) for device, time in own]
    held = [hold for hold in native.all_reduce([0, 1], 100)[0] if hold[0] < 2]
    total = least + (700 if kind == "cpu" else 0)
    assert held == [(0, total), (1, total)]


def test_what_is_summed_is_copied_first() -> None:
    devices = [Device(name, "h100", 0, 2**30, copying=5e8) for name in "ab"]
    native = Topology(tuple(devices), (Link("a", "b", 1e9),)).native
    assert [hold for hold in native.all_reduce([0, 1], 100)[0] if hold[0] < 2] == [(0, 200), (1, 200)]
    assert native.transfer(0, 1, 100)[0] == [(2, 100)]


def test_messages_and_sums_go_by_what_was_measured(tmp_path: Path) -> None:
    """In proportion between two sizes, as the first below it, on and on beyond the last."""
    devices = [make_device(name) for name in "abc"]
    curve = ((100, 50), (200, 100), (400, 500))
    links = [Link(a, b, 1e9, latency=7, overhead=3, times=curve) for a, b in ("ab", "bc", "ac")]
    sums = (Sum(2, 1, ((0, 1000), (1000, 2000))), Sum(3, 1, ((0, 5000), (10, 5000))))
    topology = Topology(tuple(devices), tuple(links), sums)
    for size, time in {1: 50, 100: 50, 150: 75, 151: 76, 200: 100, 300: 300, 400: 500, 600: 900}.items():
        assert topology.native.transfer(0, 1, size) == ([(3, time + 3)], 7)
    assert {hold for _, hold in topology.native.all_reduce([0, 2], 500)[0]} == {1500}
    assert {hold for _, hold in topology.native.all_reduce([0, 1, 2], 500)[0]} == {5000}
    topology.save(tmp_path / "t.yaml")
    assert Topology.load(tmp_path / "t.yaml") == topology
    far = Topology(tuple(replace(d, node=i) for i, d in enumerate(devices)), tuple(links), sums)
    assert {hold for _, hold in far.native.all_reduce([0, 1], 500)[0]} == {503}  # measured in one node only


def test_a_sum_may_keep_its_members_from_computing(tmp_path: Path) -> None:
    """As it did where nothing ran beside it, whatever its links hide of messages."""
    devices, links = (make_device("a"), make_device("b")), (Link("a", "b", 1e9),)
    topology = Topology(devices, links, (Sum(2, 1, ((0, 1000), (1000, 2000)), exposed=0.5),))
    assert sorted(topology.native.all_reduce([0, 1], 1000)[0]) == [(0, 1000), (1, 1000), (2, 2000), (3, 2000)]
    assert topology.native.transfer(0, 1, 1000) == ([(2, 1000)], 0)
    topology.save(tmp_path / "t.yaml")
    assert Topology.load(tmp_path / "t.yaml") == topology
    with pytest.raises(TopologyError, match="the sum among 2: exposed must be a share from 0 to 1, not 2"):
        Sum(2, 1, ((0, 1), (1, 2)), exposed=2)


def test_an_iteration_costs_each_thread_something() -> None:
    """Once, before its first op: a CPU, or the host of a GPU."""
    graph = graph_of("lenet")
    for kind in ("cpu", "h100"):
        device = Device("a", kind, 0, 2**34)
        costs = Launching(0.5) if kind == "h100" else ss.AnalyticCosts()
        alone, later = (
            ss.simulate(graph, topology, ss.baselines.data_parallel(graph, topology), training=ss.Training(costs))
            for topology in (Topology((device,), ()), Topology((replace(device, iteration=10**9),), ()))
        )
        assert later.makespan_ns > 10**9
        assert later.tasks["start"].min() >= 10**9 - alone.makespan_ns
        if kind == "cpu":
            assert later.makespan_ns == alone.makespan_ns + 10**9


def test_an_all_reduce_may_have_a_bandwidth_of_its_own(tmp_path: Path) -> None:
    devices = make_device("a"), make_device("b")
    topology = Topology(devices, (Link("a", "b", 1e9, summing=2.5e8),))
    assert topology.native.transfer(0, 1, 1000)[0] == [(2, 1000)]
    assert {hold for _, hold in topology.native.all_reduce([0, 1], 1000)[0]} == {4000}
    topology.save(tmp_path / "t.yaml")
    assert Topology.load(tmp_path / "t.yaml") == topology
    with pytest.raises(TopologyError, match="summing must be at least 1 byte/s"):
        Link("a", "b", 1e9, summing=0.5)
    with pytest.raises(TopologyError, match="sharp must be at least 1 byte/s"):
        Link("a", "b", 1e9, sharp=0.5)


def test_cpu_preset() -> None:
    topology = Topology.parse("cpu:2x2")
    assert [(device.name, device.kind, device.node) for device in topology.devices] == [
        ("cpu0", "cpu", 0),
        ("cpu1", "cpu", 0),
        ("cpu2", "cpu", 1),
        ("cpu3", "cpu", 1),
    ]
    assert topology.switches == ("host0", "network", "host1")
    holds, latency = transfer(topology, 0, 1, 3500)
    assert (holds, latency) == ({"cpu0→host0": 1000, "host0→cpu1": 1000, "cpu0": 1000, "cpu1": 1000}, 50_000)
    assert list(transfer(topology, 0, 3, 1)[0])[:4] == ["cpu0→host0", "host0→network", "network→host1", "host1→cpu3"]


def test_p100_preset_has_nvlink_inside_and_one_shared_nic() -> None:
    topology = Topology.parse("p100:2x4")
    names = topology.resources
    route = topology.native.route
    assert [names[resource] for resource in route(0, 3)] == ["gpu0→gpu3"]
    assert [names[resource] for resource in route(1, 6)] == [
        "gpu1→host0",
        "host0→network",
        "network→host1",
        "host1→gpu6",
    ]
    assert transfer(topology, 0, 1, 18_310) == ({"gpu0→gpu1": 1000}, 2000)
    assert (
        transfer(topology, 0, 4, 12_500)[0]["host0→network"]
        == transfer(topology, 3, 7, 12_500)[0]["host0→network"]
        == 1000
    )
    # Levels: each of two nodes sends its sum to the other once, 8,000,000 bytes at 12.5 bytes/ns.
    assert all_reduce(topology, list(range(8)), 8_000_000)[0]["host0→network"] == 640_000


PRESETS = [f"{name}:{shape}" for name in preset_names() for shape in ("1x1", "1x2", "1x3", "1x8", "4x1", "3x5", "2x8")]


@pytest.mark.parametrize("text", PRESETS)
def test_presets_are_sound(text: str) -> None:
    topology = Topology.parse(text)
    nodes, per_node = map(int, text.partition(":")[2].split("x"))
    assert [device.node for device in topology.devices] == [i // per_node for i in range(nodes * per_node)]
    assert topology.native.num_resources == len(topology.resources)


def test_preset_names() -> None:
    assert preset_names() == ["a100", "cpu", "h100", "h200", "k80", "k80_flexflow", "p100", "p100_flexflow", "v100"]
    assert about_presets().keys() == set(preset_names())
    assert "first cluster of the FlexFlow paper" in about_presets()["p100"]


def route_names(text: str, source: int, target: int) -> list[str]:
    topology = Topology.parse(text)
    return [topology.resources[resource] for resource in topology.native.route(source, target)]


def test_a_k80_reaches_its_neighbour_over_a_switch_of_their_own() -> None:
    assert route_names("k80:2x4", 0, 1) == ["gpu0→plx0.0", "plx0.0→gpu1"]
    assert route_names("k80:2x4", 1, 2) == ["gpu1→plx0.0", "plx0.0↔pcie0", "plx0.1↔pcie0", "plx0.1→gpu2"]
    assert route_names("k80:2x4", 1, 4)[2:4] == ["pcie0→network", "network→pcie1"]
    assert route_names("k80:1x2", 0, 1) == ["gpu0→plx0.0", "plx0.0→gpu1"]


@pytest.mark.parametrize("preset", ["a100", "h100", "h200"])
def test_a_transfer_between_nodes_goes_by_the_adapters_next_to_its_ends(preset: str) -> None:
    for source, target in ((1, 14), (14, 1), (3, 11)):
        route = [f"gpu{source}→network", f"network→gpu{target}"]
        assert route_names(f"{preset}:2x8", source, target) == route


def test_a_dgx_1_is_a_hybrid_cube_mesh() -> None:
    assert route_names("p100:1x8", 2, 6) == ["gpu2→gpu6"]
    assert len(route_names("p100:1x8", 0, 5)) == 2
    assert all(sum(name in (link.source, link.target) for link in nvlinks) == 4 for name, nvlinks in meshed("p100"))
    assert all(sum(link.bandwidth for link in own) == 150e9 for own in incident("v100"))


def meshed(kind: str) -> list[tuple[str, list[Link]]]:
    topology = Topology.parse(f"{kind}:1x8")
    links = [link for link in topology.links if link.target.startswith("gpu")]
    return [(device.name, links) for device in topology.devices]


def incident(kind: str) -> list[list[Link]]:
    return [[link for link in links if name in (link.source, link.target)] for name, links in meshed(kind)]


def test_different_devices_share_a_network() -> None:
    topology = Topology.parse("h100:1x4+a100:2x4")
    assert [d.kind for d in topology.devices] == ["h100"] * 4 + ["a100"] * 8
    assert [d.node for d in topology.devices] == [0] * 4 + [1] * 4 + [2] * 4
    assert route_names("h100:1x4+a100:2x4", 0, 11) == ["gpu0→network", "network→gpu11"]
    assert route_names("h100:1x4+a100:2x4", 4, 5) == ["gpu4→nvswitch1", "nvswitch1→gpu5"]


def test_detection_finds_this_machine() -> None:
    topology = Topology.detect()
    assert {device.node for device in topology.devices} == {0}
    if not torch.cuda.is_available():
        assert {device.kind for device in topology.devices} == {"cpu"}
        assert topology.num_devices == len(os.sched_getaffinity(0))


MATRIX = """
\tGPU0\tGPU1\tGPU2\tCPU Affinity
GPU0\t X \tNV4\tSYS\t0-31
GPU1\tNV4\t X \tNV2\t0-31
\x1b[4mGPU2\x1b[0m\tSYS\tNV2\t X \t0-31
NIC0\tPIX\tPIX\tSYS
"""


def test_nvlinks_are_read_from_the_drivers_matrix() -> None:
    assert nvlinks(MATRIX) == {(0, 1): 4, (1, 2): 2}
    assert nvlinks("") == nvlinks("NVIDIA-SMI has failed") == {}
    devices = tuple(Device(f"gpu{i}", "a100", 0, GIB) for i in range(3))
    topology = Topology(devices, tuple(joined(devices, nvlinks(MATRIX))))
    assert [topology.resources[r] for r in topology.native.route(0, 1)] == ["gpu0→gpu1"]
    assert topology.links[0].bandwidth == 100e9
    assert Topology(devices[:1], tuple(joined(devices[:1], {}))).num_devices == 1


@pytest.mark.parametrize(
    ("name", "kind"),
    [("NVIDIA H200", "h200"), ("Tesla P100-SXM2-16GB", "p100"), ("NVIDIA A100-SXM4-80GB", "a100"), ("Tesla K80", "k80"),
     ("Tesla V100-SXM2-32GB", "v100"), ("NVIDIA H100 80GB HBM3", "h100"), ("Graphics Device", "graphics-device")],
)  # fmt: skip
def test_a_devices_own_name_gives_its_kind(name: str, kind: str) -> None:
    assert kind_of(name) == kind


def test_yaml_round_trip(tmp_path: Path) -> None:
    path = tmp_path / "machines.yaml"
    for topology in (two_nodes(duplex=False, exposed=1.0), Topology.parse("p100:2x4")):
        topology.save(path)
        assert Topology.load(path) == topology
    assert [entry.name for entry in tmp_path.iterdir()] == ["machines.yaml"]


def test_a_topology_is_a_value(tmp_path: Path) -> None:
    topology = two_nodes()
    assert topology.native is topology.native
    assert topology == two_nodes()
    assert hash(topology) == hash(two_nodes())
    assert pickle.loads(pickle.dumps(topology)) == topology
    assert repr(topology.devices[0]) in repr(topology)


def test_a_failed_save_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(SoapstoneError, match="cannot write"):
        two_nodes().save(tmp_path / "absent" / "machines.yaml")
    assert not list(tmp_path.iterdir())


A, B, C = make_device("a"), make_device("b"), make_device("c")

BAD_TOPOLOGIES: dict[str, tuple[tuple[Device, ...], tuple[Link, ...], str]] = {
    "empty": ((), (), "at least one device"),
    "not connected": ((A, B, C), (Link("a", "b", 1e9),), "no route leads from device 'a' to 'c'; add links"),
    "same names": ((A, A), (), "two devices are named 'a'; rename one"),
    "two links": ((A, B), (Link("a", "b", 1e9), Link("b", "a", 1e9)), "two links join 'a' and 'b'; make them one"),
    "a typo": ((A, B), (Link("a", "b", 1e9), Link("a", "bb", 1e9)), "there is no device 'bb', and as a switch"),
}


@pytest.mark.parametrize(("devices", "links", "sentence"), BAD_TOPOLOGIES.values(), ids=BAD_TOPOLOGIES.keys())
def test_bad_topologies_get_a_sentence(devices: tuple[Device, ...], links: tuple[Link, ...], sentence: str) -> None:
    with pytest.raises(TopologyError, match=sentence):
        Topology(devices, links)


A_LINK: dict[str, Any] = {"source": "a", "target": "b", "bandwidth": 1e9}
A_DEVICE: dict[str, Any] = {"name": "a", "kind": "k", "node": 0, "memory": 1}

BAD_LINKS: list[tuple[dict[str, Any], str]] = [
    ({"bandwidth": 0}, "link 'a' to 'b': bandwidth must be at least 1 byte/s"),
    ({"bandwidth": -1e9}, "bandwidth must be at least"),
    ({"bandwidth": math.nan}, "bandwidth must be at least"),
    ({"bandwidth": math.inf}, "bandwidth must be at least"),
    ({"bandwidth": "fast"}, "bandwidth must be at least 1 byte/s and at most 2\\*\\*53, not 'fast'"),
    ({"latency": -1}, "latency must be a whole number"),
    ({"latency": 0.5}, "latency must be a whole number"),
    ({"overhead": True}, "overhead must be a whole number"),
    ({"duplex": 1}, "duplex must be true or false"),
    ({"exposed": "no"}, "exposed must be a share from 0 to 1"),
    ({"source": "b"}, "joins a vertex to itself"),
    ({"target": ""}, "target must be a name"),
]


@pytest.mark.parametrize(("change", "sentence"), BAD_LINKS, ids=[str(change) for change, _ in BAD_LINKS])
def test_bad_links_get_a_sentence(change: dict[str, Any], sentence: str) -> None:
    with pytest.raises(TopologyError, match=sentence):
        Link(**A_LINK | change)


@pytest.mark.parametrize("change", [{"name": ""}, {"kind": None}, {"node": -1}, {"node": 1.0}, {"memory": 0}], ids=str)
def test_bad_devices_get_a_sentence(change: dict[str, Any]) -> None:
    with pytest.raises(TopologyError, match=f"{next(iter(change))} must be"):
        Device(**A_DEVICE | change)


BAD_PRESETS = {
    "p100": "write PRESET:NODESxDEVICES, such as p100:4x4; presets are a100",
    "p100:4": "write PRESET:NODESxDEVICES",
    "p100:4x": "write PRESET:NODESxDEVICES",
    "p100:-1x4": "write PRESET:NODESxDEVICES",
    "p100:1x٤": "write PRESET:NODESxDEVICES",
    "abacus:1x2": "no preset 'abacus'; there are a100",
    "p100:0x4": "has no device",
    "cpu:999999999x9": "has more than 65536 devices",
    "cpu:9999999999x9": "write PRESET:NODESxDEVICES",
    "p100:1x9": "p100 has at most 8 devices a node",
}


@pytest.mark.parametrize(("text", "sentence"), BAD_PRESETS.items(), ids=BAD_PRESETS.keys())
def test_bad_presets_get_a_sentence(text: str, sentence: str) -> None:
    with pytest.raises(TopologyError, match=f"^topology '{text}': .*{sentence}"):
        Topology.parse(text)


DEVICES = "devices: [{name: a, kind: k, node: 0, memory: 1}, {name: b, kind: k, node: 0, memory: 1}]\n"

LAUGHS = ", ".join(
    f"&{name} [{', '.join(['1' if before == '-' else f'*{before}'] * 9)}]"
    for before, name in zip("-abcdefghi", "abcdefghij")
)

BAD_FILES = {
    "a billion laughs": (
        f"devices: [{{name: [{LAUGHS}], kind: k, node: 0, memory: 1}}]\nlinks: []",
        "has more than 1048576 values",
    ),
    "empty": ("", "the topology must be an object"),
    "not YAML": ("devices: [", "is not YAML"),
    "a date of its own": ("devices: 2024-13-45", "the topology lacks the key 'links'"),
    "too deep": ("[" * 10_000, "has more than 20 lists or mappings inside one another"),
    "a tag": ("!!python/object:os.system {}", "has the tag 'tag:yaml.org,2002:python/object:os.system'; write plain"),
    "in itself": ("devices: &a [*a]", "has more than 1048576 values"),
    "another version": (DEVICES + "links: []\nformat: 2\n", "has topology format 2, this version reads 1"),
    "no links": (DEVICES, "the topology lacks the key 'links'"),
    "other key": (DEVICES + "links: []\nnics: 3\n", "the topology has an unknown key 'nics'; known: devices, links"),
    "no list": (DEVICES + "links: 3\n", r"the topology\.links must be a list"),
    "no row": (DEVICES + "links: [3]\n", r"the topology\.links\[0\] must be an object"),
    "missing": (DEVICES + "links: [{source: a, target: b}]\n", r"the topology\.links\[0\] lacks the key 'bandwidth'"),
    "unknown": (
        DEVICES + "links: [{source: a, target: b, bandwidth: 1, speed: 2}]\n",
        r"the topology\.links\[0\] has an unknown key 'speed'; known: source, target, bandwidth, latency",
    ),
    "bad type": (
        DEVICES + "links: [{source: a, target: b, bandwidth: fast}]\n",
        r"the topology\.links\[0\]\.bandwidth must be of type float, not 'fast'",
    ),
    "bad value": (
        DEVICES + "links: [{source: a, target: b, bandwidth: 0}]\n",
        "link 'a' to 'b': bandwidth must be at least 1 byte/s",
    ),
    "not connected": (DEVICES + "links: []\n", "no route leads from device 'a' to 'b'"),
}


@pytest.mark.parametrize(("text", "sentence"), BAD_FILES.values(), ids=BAD_FILES.keys())
def test_bad_files_get_a_sentence(tmp_path: Path, text: str, sentence: str) -> None:
    path = tmp_path / "machines.yaml"
    path.write_text(text)
    with pytest.raises(TopologyError, match=f"^topology file .*machines.yaml: {sentence}"):
        Topology.load(path)


def test_anchors_may_be_named_again(tmp_path: Path) -> None:
    path = tmp_path / "machines.yaml"
    path.write_text(
        "devices: [&a {name: a, kind: cpu, node: 0, memory: 1e9}, {<<: *a, name: b}]\n"
        "links: [{source: a, target: b, bandwidth: 25e9, times: &t [[1, 2], [3, 4]]}]\n"
        "sums: [{members: 2, nodes: 1, times: *t}]\n"
    )
    found = Topology.load(path)
    assert [(device.name, device.memory) for device in found.devices] == [("a", 10**9), ("b", 10**9)]
    assert found.sums[0].times == found.links[0].times


def test_unreadable_files_get_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(TopologyError, match=r"there is no topology file .*absent\.yaml"):
        Topology.load(tmp_path / "absent.yaml")
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(TopologyError, match=r"binary\.yaml: cannot be read"):
        Topology.load(tmp_path / "binary.yaml")


def test_files_have_defaults_and_numbers_with_exponents(tmp_path: Path) -> None:
    path = tmp_path / "two.yaml"
    path.write_text(
        "devices:\n- {name: a, kind: p100, node: 0, memory: 17e9}\n- {name: b, kind: p100, node: 0, memory: 17.5e9}\n"
        "links:\n- {source: a, target: b, bandwidth: 12.5e9, latency: 1e3}\n"
    )
    topology = Topology.load(path)
    assert [device.memory for device in topology.devices] == [17_000_000_000, 17_500_000_000]
    assert topology.links == (Link("a", "b", 12.5e9, latency=1000),)
    path.write_text(path.read_text().replace("17.5e9", "17.5e-1"))
    with pytest.raises(TopologyError, match="memory"):
        Topology.load(path)


def on_a_bus() -> Topology:
    """Three devices whose links, of 1 GB/s, share a bus of 1.5 GB/s; a and b also a port of 2 GB/s."""
    links = [Link(*ends, 1e9, latency=10, buses=buses) for ends, buses in (
        (("a", "b"), ("port", "bus")), (("b", "c"), ("bus",)), (("a", "c"), ("bus",)),
    )]  # fmt: skip
    return Topology(tuple(map(make_device, "abc")), tuple(links), (), (Bus("bus", 1.5e9), Bus("port", 2e9)))


def test_messages_share_the_buses_of_their_links() -> None:
    holds, latency = transfer(on_a_bus(), 1, 0, 3000)
    assert (holds, latency) == ({"b→a": 3000, "port": 1500, "bus": 2000}, 10)
    holds, _ = transfer(on_a_bus(), 1, 2, 3000)
    assert holds == {"b→c": 3000, "bus": 2000}
    chained = replace(on_a_bus(), links=on_a_bus().links[:2])
    assert transfer(chained, 0, 2, 3000)[0] == {"a→b": 3000, "b→c": 3000, "port": 1500, "bus": 2000}


def test_a_sum_shares_the_buses_of_its_links() -> None:
    """A ring of three moves 2 * 2/3 of the bytes over each of its links, and three times as much over the bus."""
    holds, _ = all_reduce(on_a_bus(), [0, 1, 2], 300_000)
    assert holds == {"a→b": 400_000, "b→c": 400_000, "c→a": 400_000, "port": 200_000, "bus": 800_000}
    known = replace(on_a_bus(), sums=(Sum(3, 1, ((1, 5), (1_000_000, 1_000_004))),))
    assert set(all_reduce(known, [0, 1, 2], 300_000)[0].values()) == {300_004}


def test_buses_in_files(tmp_path: Path) -> None:
    on_a_bus().save(tmp_path / "t.yaml")
    assert Topology.load(tmp_path / "t.yaml") == on_a_bus()
    with pytest.raises(TopologyError, match="there is no bus 'prt'; did you mean port"):
        Topology(on_a_bus().devices, (Link("a", "b", 1e9, buses=("prt",)),), (), (Bus("port", 1e9),))
    with pytest.raises(TopologyError, match="two buses are named 'b'"):
        replace(on_a_bus(), buses=(*on_a_bus().buses, Bus("b", 1e9), Bus("b", 1e9)))
    with pytest.raises(TopologyError, match="bus 'b': bandwidth must be at least 1 byte/s"):
        Bus("b", 0)


def test_sums_as_in_the_paper() -> None:
    """4 GiB/s from device to device of a node, then 1 GiB/s from node to node, one after the other."""
    topology = Topology.parse("p100_flexflow:4x4")
    for devices, seconds in (([0, 1], 0.25), ([0, 1, 2, 3], 0.75), ([0, 4], 1.0), (list(range(16)), 3.75)):
        holds, latency = all_reduce(topology, devices, GIB)
        assert set(holds.values()) == {int(seconds * 1e9)}, devices
        assert latency == 0
    assert transfer(topology, 0, 1, GIB) == ({"gpu0→gpu1": 250_000_000}, 0)
    assert max(transfer(topology, 0, 4, GIB)[0].values()) == 1_000_000_000
    with pytest.raises(TopologyError, match="a preset with sums of its own joins no other"):
        Topology.parse("p100_flexflow:1x2+a100:1x2")
