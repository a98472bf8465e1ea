"""Two nodes with four NCCL ranks each, as users start them. The nodes are network namespaces of this machine, with a
real link between them, and all ranks share its GPU."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import soapstone as ss
from tests.distributed.nodes import calibrated, check_strategies, cut_link, lose_a_node, needs_nodes, on_nodes

from .test_commands import SMALL

pytestmark = needs_nodes


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The cluster's topology, calibrated once."""
    return calibrated(tmp_path_factory.mktemp("nodes"), "2x4", gbit=8)


def test_calibration_finds_what_ranks_of_a_node_share(here: Path) -> None:
    topology = ss.Topology.load(here)
    assert [device.node for device in topology.devices] == [0] * 4 + [1] * 4
    assert {(each.members, each.nodes) for each in topology.sums} == {(2, 1), (4, 1), (2, 2), (4, 2), (8, 2)}
    for link in topology.links:
        if link.target == "network":
            assert 0.7e9 < link.bandwidth < 1.3e9  # 8 Gb/s are 1 GB/s


def test_strategies_that_cross_nodes_compute_what_one_device_does(here: Path, tmp_path: Path) -> None:
    check_strategies(tmp_path, "2x4", here, "dp4-pp2-m2", "dp2-tp2-pp2-m2", "dp4-tp2")


def test_a_node_whose_link_goes_down_is_named(tmp_path: Path) -> None:
    said = cut_link(tmp_path, 4)
    assert all("ranks 4, 5, 6, 7 give no sign of life any more" in each for each in said[:4]), said
    assert all("the network to its machine is down" in each for each in said[4:]), said


def test_training_resumes_on_another_number_of_nodes(tmp_path: Path) -> None:
    def losses(shape: str, folder: str, *options: str) -> list[float]:
        model = ("gpt2", *SMALL, "--precision", "float64", "--optimizer", "adamw", "-t", f"h200:{shape}", "--json")
        done = on_nodes(tmp_path, shape, "soapstone", "train", *model, "--save", str(tmp_path / folder), *options)
        assert done.returncode == 0, done.stderr
        found: list[float] = json.loads(done.stdout)["losses"]
        return found

    first = losses("2x4", "cut", "--steps", "2", "-s", "fsdp")
    rest = losses("1x4", "cut", "--steps", "5", "-s", "megatron", "--resume")
    assert first + rest == pytest.approx(losses("2x2", "whole", "--steps", "5", "-s", "data"), rel=1e-9)


def test_two_agents_of_torchrun_train_together(tmp_path: Path) -> None:
    train = ("torch.distributed.run", "-m", "soapstone", "train", "gpt2", *SMALL, "-t", "h200:2x1", "--steps", "2")
    done = on_nodes(tmp_path, "2x1", *train, "--check", options=("--agents",))
    assert done.returncode == 0, done.stderr
    assert "Checked 3 steps against" in done.stderr


def test_a_job_goes_on_without_the_node_that_is_lost(tmp_path: Path) -> None:
    near, far = lose_a_node(tmp_path, "h200", 1)
    assert "rank 1 gives no sign of life any more" in near
    assert "steps, to go on from" in near
    # Whichever its ranks notice first: their adapter, or that its torchrun has given up.
    assert "the network to its machine is down" in far or "torchrun is gone" in far


def test_tune_runs_on_all_nodes(here: Path, tmp_path: Path) -> None:
    options = ("-t", str(here), "--budget", "3", "--limit", "40", "-o", str(tmp_path / "s.json"), "--json")
    done = on_nodes(tmp_path, "2x4", "soapstone", "tune", "gpt2", *SMALL, *options)
    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "s.json").read_text())["measured"]["ranks"] == 8
