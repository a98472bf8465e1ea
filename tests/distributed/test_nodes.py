"""Two nodes with two ranks each, as users start them. The nodes are network namespaces of this machine, with a real
link between them."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from threading import Event, Thread

import pytest

import soapstone as ss
from soapstone.runtime.checkpoints import latest
from soapstone.runtime.checkpoints.index import Index
from soapstone.runtime.sharing import MadeNodes, agents, made_nodes, run_ranks
from tests.support.waiting import HANG

from .launch import quick_calibration
from .nodes import check_strategies, environment, needs_nodes, on_nodes

pytestmark = needs_nodes
MODEL = ("lenet", "--batch", "8", "--dtype", "float64")


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The cluster's topology: tune calibrates what it is not told."""
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
    torchrun = (
        f"{sys.executable} -m torch.distributed.run --nnodes 1:2 --nproc-per-node 2 --max-restarts 3 "
        "--rdzv-backend c10d --rdzv-endpoint 10.77.0.1:29500 "
        "--rdzv-conf is_host=$((1 - NODE_RANK)),join_timeout=60,last_call_timeout=5"
    )
    options = "-t cpu:2x2 -s data --steps 60 --every 5 --save saved --elastic --timeout 8"
    command = f"""
        cd {tmp_path}; echo $$ > shell$NODE_RANK
        {torchrun} -m soapstone train {" ".join(MODEL)} {options} > said$NODE_RANK 2>&1
        status=$?; touch ended$NODE_RANK; exit $status
    """
    with made_nodes(2) as nodes:
        Thread(target=lose_a_node, args=(nodes, tmp_path), daemon=True).start()
        environments = [{**environment(tmp_path), **own} for own in agents(2, 2)]
        statuses = run_ranks(["sh", "-c", command], environments, HANG, nodes.enter)
    said = [(tmp_path / f"said{node}").read_text() for node in range(2)]
    assert statuses == [0, -signal.SIGKILL], said
    assert "ranks 2, 3 give no sign of life any more" in said[0]
    assert "steps, to go on from" in said[0]
    assert "the network to its machine is down" in said[1]
    newest = latest(tmp_path / "saved")
    assert newest is not None
    assert Index.read(newest).ranks == 2


def lose_a_node(nodes: MadeNodes, folder: Path) -> None:
    """Take the second node's link down when all ranks have saved together, and end its torchrun, which goes on looking
    for the first node, when the job has ended."""
    tick = Event()
    while (path := latest(folder / "saved")) is None or Index.read(path).ranks < 4:
        tick.wait(0.1)
    nodes.set_link(1, up=False)
    while not (folder / "ended0").exists():
        tick.wait(0.1)
    os.kill(int((folder / "shell1").read_text()), signal.SIGKILL)
