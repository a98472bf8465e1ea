"""The commands that need torchrun, as a user starts them."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import soapstone as ss

ROOT = Path(__file__).parents[2]
TIMEOUT = 100


def environment(folder: Path) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "SOAPSTONE_CACHE": str(folder / "cache")}


def torchrun(folder: Path, *arguments: str, ranks: int = 2) -> subprocess.CompletedProcess[str]:
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    command = [*launcher, "-m", "soapstone", *arguments]
    return subprocess.run(command, env=environment(folder), capture_output=True, text=True, timeout=TIMEOUT)


def soapstone(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "soapstone", *arguments]
    return subprocess.run(command, env=environment(folder), capture_output=True, text=True, timeout=TIMEOUT)


MODEL = ("lenet", "--batch", "8", "--dtype", "float64")


def test_calibration_becomes_a_topology_that_training_is_predicted_with(tmp_path: Path) -> None:
    here, strategy, trace = tmp_path / "here.yaml", tmp_path / "s.json", tmp_path / "trace.json"
    done = torchrun(tmp_path, "calibrate", "-o", str(here))
    assert done.returncode == 0, done.stderr
    assert "An all-reduce among all 2 ranks" in done.stdout
    (link,) = ss.Topology.load(here).links
    assert link.bandwidth > 1e7
    assert link.summing is not None
    assert link.latency + link.overhead > 0
    found = soapstone(tmp_path, "search", *MODEL, "-t", str(here), "-o", str(strategy), "--proposals", "300")
    assert found.returncode == 0, found.stderr
    options = ("-t", str(here), "-s", str(strategy), "--steps", "3", "--check", "--trace", str(trace), "--json")
    trained = torchrun(tmp_path, "train", *MODEL, *options)
    assert trained.returncode == 0, trained.stderr
    assert "Checked 3 steps against one device" in trained.stderr
    facts: dict[str, Any] = json.loads(trained.stdout)
    assert facts["step"] > 0
    assert facts["predicted"] > 0
    assert len(facts["losses"]) == 6
    assert len(facts["idle"]) == 2
    assert all(0 <= idle <= 1 for idle in facts["idle"])
    events = json.loads(trace.read_text())["traceEvents"]
    assert {"forward", "backward"} <= {event.get("cat") for event in events}
    assert {event["tid"] for event in events if event["ph"] == "X"} == {0, 1}


@pytest.mark.long  # tests/runtime/test_checkpoints.py has it on threads
def test_training_resumes_with_another_strategy_and_more_ranks(tmp_path: Path) -> None:
    def trained(ranks: int, strategy: str, steps: int, *options: str) -> list[float]:
        case = ("-t", f"cpu:1x{ranks}", "-s", strategy, "--steps", str(steps), "--optimizer", "adamw", "--json")
        done = torchrun(tmp_path, "train", *MODEL, *case, *options, ranks=ranks)
        assert done.returncode == 0, done.stderr
        losses: list[float] = json.loads(done.stdout)["losses"]
        return losses

    saved = ("--save", str(tmp_path / "saved"))
    before = trained(2, "data", 2, *saved, "--every", "2", "--resume")  # there is nothing yet to resume
    after = trained(3, "fsdp", 4, *saved, "--resume", "--keep", "1")
    assert [*before, *after] == pytest.approx(trained(2, "data", 4), rel=1e-9)
    assert [path.name for path in (tmp_path / "saved").iterdir()] == ["step-000000007"]


def test_training_goes_on_from_the_newest_undamaged_checkpoint_in_another_type(tmp_path: Path) -> None:
    folder, model = tmp_path / "saved", ("lenet", "--batch", "8", "-t", "cpu:1x1", "--save", str(tmp_path / "saved"))
    done = torchrun(tmp_path, "train", *model, "--dtype", "float64", "--steps", "2", "--every", "2", ranks=1)
    assert done.returncode == 0, done.stderr
    (folder / "step-000000005" / "checkpoint.json").unlink()
    weights = tmp_path / "weights.pt"
    refused = soapstone(tmp_path, "export-weights", str(folder), "-o", str(weights))
    assert "step-000000005/checkpoint.json: No such file" in refused.stderr
    assert "--last-good" in refused.stderr
    exported = soapstone(tmp_path, "export-weights", str(folder), "-o", str(weights), "--last-good", "--json")
    assert "step-000000005/checkpoint.json: No such file" in exported.stderr
    assert json.loads(exported.stdout)["checkpoint"] == str(folder / "step-000000004")
    done = torchrun(tmp_path, "train", *model, "--resume", "--last-good", "--convert", "--steps", "3", ranks=1)
    assert done.returncode == 0, done.stderr
    assert "damaged-step-000000005 now." in done.stderr
    assert f"{folder} has 4 steps, to go on from." in done.stderr
    assert {path.name for path in folder.glob("*step*")} == {
        "damaged-step-000000005", "step-000000004", "step-000000006",
    }  # fmt: skip


def two_agents(folder: Path, *command: str) -> list[tuple[str, str]]:
    """What two torchrun agents, as two nodes of a rank each, write to standard output and error."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nnodes", "2", "--nproc-per-node", "1"]
    meeting = ["--master-addr", "127.0.0.1", "--master-port", str(port)]
    agents = [
        subprocess.Popen(
            [*launcher, *meeting, "--node-rank", str(node), "-m", "soapstone", *command],
            env=environment(folder),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for node in range(2)
    ]
    try:
        outputs = [agent.communicate(timeout=TIMEOUT) for agent in agents]
    finally:
        for agent in agents:
            agent.kill()
    assert [agent.returncode for agent in agents] == [0, 0], outputs
    return outputs


@pytest.mark.long
def test_two_nodes_on_loopback_are_calibrated_and_train_together(tmp_path: Path) -> None:
    here = tmp_path / "here.yaml"
    two_agents(tmp_path, "calibrate", "-o", str(here))
    assert [device.node for device in ss.Topology.load(here).devices] == [0, 1]
    outputs = two_agents(tmp_path, "train", *MODEL, "-t", str(here), "--steps", "2", "--check")
    assert "a step" in outputs[0][0]
    assert "Checked 3 steps against one device" in outputs[0][1]


SLOW = """
import os, signal, sys
import torch.distributed as dist
import soapstone as ss
from tests.support.models import CASES

dist.init_process_group("gloo")
case = CASES["mlp"]
work = case.workload()
graph = ss.capture(work)
topology = ss.Topology.parse("cpu:1x2")
parallel = ss.parallelize(work, graph, topology, ss.baselines.data_parallel(graph, topology))
parallel.step(*case.batches(1)[0])
if dist.get_rank() == 1:
    os.kill(os.getpid(), signal.SIGKILL)
try:
    for _ in range(1000):
        parallel.step(*case.batches(1)[0])
except ss.SoapstoneError as error:
    print(f"heard: {error}", flush=True)
    os._exit(3)
"""


def test_a_killed_rank_is_told_of_in_a_sentence(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SLOW)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    shared = environment(tmp_path) | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "2"}
    ranks = [
        subprocess.Popen(
            [sys.executable, str(script)], env=shared | {"RANK": str(rank)}, stdout=subprocess.PIPE, text=True
        )
        for rank in range(2)
    ]
    try:
        heard, _ = (rank.communicate(timeout=TIMEOUT)[0] for rank in ranks)
        assert ranks[1].returncode == -signal.SIGKILL
    finally:
        for rank in ranks:
            rank.kill()
    assert ranks[0].returncode == 3
    assert "heard: rank 1 was killed, or ended without a word; last seen " in heard


@pytest.mark.parametrize(
    ("arguments", "wanted"),
    [
        (("calibrate",), "start it with torchrun"),
        pytest.param(("train", "lenet", "-t", "cpu:1x2"), "start it with torchrun", marks=pytest.mark.long),
        pytest.param(("plan", "lenet", "-t", "cpu:1x2", "--rank", "2"), "there is no rank 2", marks=pytest.mark.long),
        (("plan", "lenet", "-t", "cpu:1x2", "-s", "nowhere.json"), "there is no strategy 'nowhere.json'"),
        (("train", "lenet", "-t", "cpu:1x2", "--resume"), "add --save FOLDER"),
        (("train", "lenet", "-t", "cpu:1x2", "--save", "/proc/x"), "cannot write to --save /proc/x"),
    ],
)
def test_bad_calls_end_in_a_sentence(arguments: tuple[str, ...], wanted: str, tmp_path: Path) -> None:
    done = soapstone(tmp_path, *arguments)
    assert done.returncode == 2
    assert wanted in done.stderr
    assert "Traceback" not in done.stderr


def test_ranks_that_are_too_few_are_told(tmp_path: Path) -> None:
    done = torchrun(tmp_path, "train", *MODEL, "-t", "cpu:1x3")
    assert done.returncode != 0
    assert "soapstone: rank 0: there are 2 ranks for 3 devices; start torchrun with --nproc-per-node 3" in done.stderr
    assert "ranks=" not in done.stderr


@pytest.mark.long
def test_a_plan_is_printed_in_words(tmp_path: Path) -> None:
    done = soapstone(tmp_path, "plan", *MODEL, "-t", "cpu:1x2", "-s", "data")
    assert done.returncode == 0
    for word in ("forward", "backward", "combine", "sync", "Rank 0: 3 segments"):
        assert word in done.stdout
    rows = json.loads(soapstone(tmp_path, "plan", *MODEL, "-t", "cpu:1x2", "--rank", "1", "--json").stdout)
    assert [row["kind"] for row in rows][:3] == ["forward", "combine", "backward"]
