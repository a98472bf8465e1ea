"""Two nodes with two ranks each, as users start them. The nodes are network namespaces of this machine, with a real
link between them."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from threading import Thread

import pytest

import soapstone as ss
from soapstone.runtime.sharing import cpu_ranks, made_nodes, run_ranks

from .nodes import TIMEOUT, environment, needs_nodes, on_nodes

pytestmark = [needs_nodes, pytest.mark.timeout(2 * TIMEOUT)]
MODEL = ("lenet", "--batch", "8", "--dtype", "float64")


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The cluster's topology, calibrated once."""
    folder = tmp_path_factory.mktemp("nodes")
    done = on_nodes(folder, "2x2", "soapstone", "calibrate", "-o", str(folder / "here.yaml"), gbit=4)
    assert done.returncode == 0, done.stderr
    assert "An all-reduce among all 4 ranks" in done.stdout
    assert len(done.stderr.splitlines()) < 12, done.stderr  # no flood in a log
    return folder / "here.yaml"


def test_calibration_finds_the_nodes_and_what_their_ranks_share(here: Path) -> None:
    topology = ss.Topology.load(here)
    assert [device.node for device in topology.devices] == [0, 0, 1, 1]
    assert {(each.members, each.nodes) for each in topology.sums} == {(2, 1), (2, 2), (4, 2)}
    (adapter,) = {link.bandwidth for link in topology.links if link.target == "network"}
    assert 1e7 < adapter < 1e9  # 4 Gb/s are 0.5 GB/s; a busy machine is slower


CHECKS = """
import sys
import torch
import soapstone as ss
from soapstone.runtime.checking import check
from soapstone.runtime.transports import joined

torch.set_num_threads(1)
with joined("") as (transport, place):
    topology = ss.Topology.load(sys.argv[1])
    for model in ("lenet", "gpt2"):
        sizes = dict(layers=2, width=32, heads=2, length=16, vocab=64) if model == "gpt2" else {}
        torch.manual_seed(0)
        work = ss.zoo.load(model, batch=8, **sizes)
        graph = ss.capture(work)
        names = ("data", "model", "fsdp", "dp2-pp2-m2", "tp4", "dp2-tp2")
        for name in names if model == "gpt2" else ("model", "searched"):
            made = {"searched": lambda: ss.baselines.random(graph, topology, seed=5)}
            strategy = made.get(name, lambda: ss.baselines.baseline(name, graph, topology))()
            found = check(work, graph, strategy, transport=transport, place=place, seed=0)
            if transport.rank == 0:
                print(model, name, found, flush=True)
"""


def test_strategies_that_cross_nodes_compute_what_one_device_does(here: Path, tmp_path: Path) -> None:
    script = tmp_path / "checks.py"
    script.write_text(CHECKS)
    done = on_nodes(tmp_path, "2x2", str(script), str(here), gbit=4)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("Checked 3 steps against one device") == 8, done.stdout


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
