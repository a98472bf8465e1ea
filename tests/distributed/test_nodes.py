"""Two nodes with two ranks each, as users start them. The nodes are network namespaces of this machine, with a real
link between them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import soapstone as ss
from soapstone.runtime.checkpoints import latest
from soapstone.runtime.checkpoints.index import Index

from .launch import quick_calibration
from .nodes import MODEL, check_strategies, lose_a_node, needs_nodes, on_nodes

pytestmark = needs_nodes


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The cluster's topology, which tune calibrates."""
    folder = tmp_path_factory.mktemp("nodes")
    options = ("--budget", "1", "--limit", "5", "-o", str(folder / "here.json"))
    with quick_calibration():
        done = on_nodes(folder, "2x2", "soapstone", "tune", *MODEL, *options, gbit=4)
    assert done.returncode == 0, done.stderr
    assert json.loads((folder / "here.json").read_text())["measured"]["ranks"] == 4
    assert done.stderr.count("Measuring the links") < 20, done.stderr  # no flood in a log
    return folder / "here.yaml"


def test_tuning_finds_the_nodes_and_what_their_ranks_share(here: Path) -> None:
    topology = ss.Topology.load(here)
    assert [device.node for device in topology.devices] == [0, 0, 1, 1]
    assert {(each.members, each.nodes) for each in topology.sums} == {(2, 1), (2, 2), (4, 2)}
    assert {link.target for link in topology.links if link.source == "cpu0"} == {"cpu1", "adapter0"}
    assert all(link.bandwidth < 1e9 for link in topology.links if link.target == "network")  # 4 Gb/s are 0.5 GB/s


def test_strategies_that_cross_nodes_compute_what_one_device_does(here: Path, tmp_path: Path) -> None:
    check_strategies(tmp_path, "2x2", here, "dp2-pp2-m2", "tp4", "dp2-tp2")


def test_a_job_goes_on_without_the_node_that_is_lost(tmp_path: Path) -> None:
    """Two agents of torchrun train; the second's link goes down, its ranks are named, and the job goes on from what
    four ranks saved on the two that are left."""
    near, far = lose_a_node(tmp_path, "cpu", 2)
    assert "ranks 2, 3 give no sign of life any more" in near
    assert "steps, to go on from" in near
    # Whichever its ranks notice first: their adapter, or that its torchrun has given up.
    assert "the network to its machine is down" in far or "torchrun is gone" in far
    newest = latest(tmp_path / "saved")
    assert newest is not None
    assert Index.read(newest).ranks == 2
