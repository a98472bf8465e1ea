"""Nodes made on this machine: whether it can make them, and what is tried on their ranks, over gloo or NCCL."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from functools import cache
from pathlib import Path
from threading import Event, Thread

import pytest
import torch

from soapstone.errors import RankError
from soapstone.runtime.checkpoints import latest
from soapstone.runtime.checkpoints.index import Index
from soapstone.runtime.sharing import MadeNodes, agents, cpu_ranks, made_nodes, run_ranks, shared_gpu
from tests.support.waiting import HANG

from .launch import run_command

ROOT = Path(__file__).parents[2]
MODEL = ("lenet", "--batch", "8", "--precision", "float64")


@cache
def why_not() -> str:
    """Why this machine cannot make nodes; empty if it can."""
    try:
        with made_nodes(1, gbit=1):
            return ""
    except (RankError, OSError) as error:
        return str(error)


needs_nodes = pytest.mark.skipif(bool(why_not()), reason=f"no nodes can be made here: {why_not()}")


def environment(folder: Path, own: Mapping[str, str] = os.environ) -> dict[str, str]:
    return {**own, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "SOAPSTONE_CACHE": str(folder / "cache")}


def on_nodes(
    folder: Path, shape: str, *command: str, gbit: float = 8, options: tuple[str, ...] = ()
) -> subprocess.CompletedProcess[str]:
    """Run a module or a script on each rank: `on_nodes(folder, "2x2", "soapstone", "calibrate")`. Without a GPU ranks
    are forked from this process, unless torchrun starts them."""
    if not torch.cuda.is_available() and not options:
        num_nodes, per_node = map(int, shape.split("x"))
        with made_nodes(num_nodes, gbit) as nodes:
            return forked(folder, command[command[0] == "soapstone" :], cpu_ranks(per_node, num_nodes), nodes)
    launcher = [sys.executable, "-m", "soapstone", "ranks", shape, "--gbit", str(gbit), *options, "--", sys.executable]
    program = command if command[0].endswith(".py") else ("-m", *command)
    return subprocess.run([*launcher, *program], env=environment(folder), capture_output=True, text=True, timeout=HANG)


def forked(
    folder: Path, command: Sequence[str], ranks: list[dict[str, str]], nodes: MadeNodes
) -> subprocess.CompletedProcess[str]:
    """What rank 0 prints, and whether all end well."""
    own = [{**each, "SOAPSTONE_CACHE": str(folder / "cache")} for each in ranks]
    done = run_command(folder, command, own, lambda rank: nodes.enter(rank // int(ranks[0]["LOCAL_WORLD_SIZE"])))
    errors = "".join(each.err for each in done)
    return subprocess.CompletedProcess(command, max(each.status for each in done), done[0].out, errors)


def calibrated(folder: Path, shape: str, gbit: float) -> Path:
    done = on_nodes(folder, shape, "soapstone", "calibrate", "-o", str(folder / "here.yaml"), gbit=gbit)
    assert done.returncode == 0, done.stderr
    assert "An all-reduce among all " in done.stdout
    assert len(done.stderr.splitlines()) < 14, done.stderr  # no flood in a log
    return folder / "here.yaml"


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
        names = ("data", "model", "fsdp", *sys.argv[2:])
        for name in names if model == "gpt2" else ("model", "searched"):
            made = {"searched": lambda: ss.baselines.random(graph, topology, seed=5)}
            strategy = made.get(name, lambda: ss.baselines.baseline(name, graph, topology))()
            found = check(work, graph, strategy, transport=transport, place=place, seed=0)
            if transport.rank == 0:
                print(model, name, found, flush=True)
"""


def check_strategies(folder: Path, shape: str, here: Path, *grids: str) -> None:
    """Train under strategies that cross the nodes, and on one device."""
    (folder / "checks.py").write_text(CHECKS)
    done = on_nodes(folder, shape, str(folder / "checks.py"), str(here), *grids)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("Checked 3 steps against one device") == 5 + len(grids), done.stdout


TRAINS = """
import sys
import torch
import soapstone as ss
from soapstone.runtime.transports import joined

def train(transport, place, begun):
    torch.manual_seed(0)  # every rank draws the same batch
    work = ss.zoo.load("lenet", batch=8)
    graph, topology = ss.capture(work), ss.Topology.parse(sys.argv[3])
    strategy = ss.baselines.data_parallel(graph, topology)
    parallel = ss.parallelize(work.on(place), graph, topology, strategy, transport=transport)
    for step in range(10**9):
        parallel.step(*work.batch)
        if step == 5 and transport.rank == 0:
            open(begun, "w").close()

try:
    with joined("", timeout=15) as (transport, place):
        train(transport, place, sys.argv[1])
except ss.SoapstoneError as error:
    open(f"{sys.argv[2]}/{transport.rank}", "w").write(str(error))
    sys.exit(3)
"""


def cut_link(folder: Path, per_node: int) -> list[str]:
    """Train on two nodes and take the second one's link down; what each rank says of it."""
    (folder / "trains.py").write_text(TRAINS)
    begun = folder / "begun"
    os.mkfifo(begun)
    gpu = torch.cuda.is_available()
    started = shared_gpu(per_node, 2) if gpu else nullcontext(cpu_ranks(per_node, 2))
    with started as environments, made_nodes(2) as nodes:

        def cut() -> None:
            begun.read_text()  # returns when rank 0 has trained some steps
            nodes.set_link(1, up=False)

        Thread(target=cut, daemon=True).start()
        command = [
            sys.executable,
            str(folder / "trains.py"),
            str(begun),
            str(folder),
            f"{'h200' if gpu else 'cpu'}:2x{per_node}",
        ]
        run_ranks(
            command,
            [environment(folder, each) for each in environments],
            HANG,
            lambda rank: nodes.enter(rank // per_node),
        )
    return [path.read_text() if path.exists() else "" for path in (folder / str(rank) for rank in range(2 * per_node))]


def lose_a_node(folder: Path, preset: str, per_node: int) -> tuple[str, str]:
    """Train with two agents of torchrun, take the second one's link down, and let the job end without it; what each
    agent and its ranks say."""
    torchrun = (
        f"{sys.executable} -m torch.distributed.run --nnodes 1:2 --nproc-per-node {per_node} --max-restarts 3 "
        "--rdzv-backend c10d --rdzv-endpoint 10.77.0.1:29500 "
        "--rdzv-conf is_host=$((1 - NODE_RANK)),join_timeout=60,last_call_timeout=5"
    )
    options = f"-t {preset}:2x{per_node} -s data --steps 60 --every 5 --save saved --elastic --timeout 8"
    command = f"""
        cd {folder}; echo $$ > shell$NODE_RANK
        {torchrun} -m soapstone train {" ".join(MODEL)} {options} > said$NODE_RANK 2>&1
        status=$?; touch ended$NODE_RANK; exit $status
    """
    with made_nodes(2) as nodes:
        Thread(target=_lose_the_second, args=(nodes, folder, 2 * per_node), daemon=True).start()
        environments = [environment(folder, own) for own in agents(per_node, 2)]
        statuses = run_ranks(["sh", "-c", command], environments, HANG, nodes.enter)
    near, far = ((folder / f"said{node}").read_text() for node in range(2))
    assert statuses == [0, -signal.SIGKILL], near + far
    return near, far


def _lose_the_second(nodes: MadeNodes, folder: Path, num_ranks: int) -> None:
    """Take the second node's link down when all ranks have saved together, and end its torchrun, which goes on looking
    for the first node, when the job has ended."""
    tick = Event()
    while (path := latest(folder / "saved")) is None or Index.read(path).ranks < num_ranks:
        tick.wait(0.1)
    nodes.set_link(1, up=False)
    while not (folder / "ended0").exists():
        tick.wait(0.1)
    os.kill(int((folder / "shell1").read_text()), signal.SIGKILL)
