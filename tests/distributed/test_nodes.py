"""Two nodes with two ranks each, as users start them. The nodes are network namespaces of this machine, with a real
link between them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import soapstone as ss

from .nodes import calibrated, check_strategies, cut_link, needs_nodes, on_nodes

pytestmark = needs_nodes
MODEL = ("lenet", "--batch", "8", "--dtype", "float64")


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The cluster's topology, calibrated once."""
    return calibrated(tmp_path_factory.mktemp("nodes"), "2x2", gbit=4)


def test_calibration_finds_the_nodes_and_what_their_ranks_share(here: Path) -> None:
    topology = ss.Topology.load(here)
    assert [device.node for device in topology.devices] == [0, 0, 1, 1]
    assert {(each.members, each.nodes) for each in topology.sums} == {(2, 1), (2, 2), (4, 2)}
    assert {link.target for link in topology.links if link.source == "cpu0"} == {"cpu1", "adapter0"}
    assert all(link.bandwidth < 1e9 for link in topology.links if link.target == "network")  # 4 Gb/s are 0.5 GB/s


def test_strategies_that_cross_nodes_compute_what_one_device_does(here: Path, tmp_path: Path) -> None:
    check_strategies(tmp_path, "2x2", here, "dp2-pp2-m2", "tp4", "dp2-tp2")


def test_a_node_whose_link_goes_down_is_named(tmp_path: Path) -> None:
    *near, far, other = cut_link(tmp_path, 2)
    assert all("ranks 2, 3 give no sign of life any more" in said for said in near), near
    assert "the network to its machine is down" in far
    assert "the network to its machine is down" in other


def losses(folder: Path, shape: str, strategy: str, steps: int, *options: str) -> list[float]:
    case = ("-t", f"cpu:{shape}", "-s", strategy, "--steps", str(steps), "--optimizer", "adamw", "--json")
    done = on_nodes(folder, shape, "soapstone", "train", *MODEL, *case, *options)
    assert done.returncode == 0, done.stderr
    found: list[float] = json.loads(done.stdout)["losses"]
    return found


def test_training_resumes_on_another_number_of_nodes(tmp_path: Path) -> None:
    saved = ("--save", str(tmp_path / "saved"))
    before = losses(tmp_path, "2x2", "fsdp", 2, *saved)
    after = losses(tmp_path, "1x2", "data", 4, *saved, "--resume")
    assert [*before, *after] == pytest.approx(losses(tmp_path, "2x1", "data", 4), rel=1e-9)


def test_two_agents_of_torchrun_train_together(tmp_path: Path) -> None:
    command = ("torch.distributed.run", "-m", "soapstone", "train", *MODEL, "-t", "cpu:2x2", "--steps", "2", "--check")
    done = on_nodes(tmp_path, "2x2", *command, options=("--agents",))
    assert done.returncode == 0, done.stderr
    assert "Checked 3 steps against one device" in done.stderr
