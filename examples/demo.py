"""What soapstone does, in a minute: capture a CNN, predict two strategies, train with both on two processes."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from cnn import batch, workload
from rich.console import Console
from rich.table import Table
from train_cnn import LEARNING_RATE, STEPS

import soapstone as ss

RANKS = 2
console = Console(width=max(100, Console().width) if not sys.stdout.isatty() else None)


def show_graph(graph: ss.OperatorGraph) -> None:
    table = Table(title="The CNN as torch.export and fusion see it", title_justify="left")
    for column in ("op", "what it runs", "dims (S sample, A attribute, P parameter, R reduction)"):
        table.add_column(column)
    for op in graph.ops:
        dims = "  ".join(f"{d}[dim]:{d.kind[0].upper()}[/dim]" for d in op.dims)
        steps = [op.kind if i == op.head else s.kind.removeprefix("native_") for i, s in enumerate(op.steps)]
        table.add_row(op.name, " ".join(steps), dims)
    console.print(table)
    console.print("[dim]{x} parts along x combine partial results; x! is needed whole.[/dim]\n")


def show_simulations(graph: ss.OperatorGraph, topology: ss.Topology, strategies: dict[str, ss.Strategy]) -> None:
    table = Table(title=f"One iteration on {RANKS} CPU processes, simulated", title_justify="left")
    for column in ("strategy", "tasks", "time (ms)", "moved (MB)", "compute (ms)"):
        table.add_column(column, justify="right")
    for name, strategy in strategies.items():
        sim = ss.simulate(graph, topology, strategy, optimizer="momentum")
        numbers = (sim.makespan * 1e3, sim.bytes_moved / 1e6, sim.compute_time * 1e3)
        table.add_row(name, str(len(sim.tasks)), *(f"{n:.2f}" for n in numbers))
    console.print(table)
    console.print()


def train_plain() -> list[float]:
    work = workload()
    optimizer = torch.optim.SGD(work.model.parameters(), lr=LEARNING_RATE, momentum=0.9)
    torch.manual_seed(1)
    losses = []
    for step in range(STEPS):
        optimizer.zero_grad()
        loss = work.compute_loss(*batch(step))
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        losses.append(loss.item())
    return losses


def train_on_processes(strategy: ss.Strategy) -> list[float]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "strategy.json"
        strategy.save(path)
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(RANKS)]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        script = Path(__file__).with_name("train_cnn.py")
        done = subprocess.run([*torchrun, str(script), str(path)], env=environment, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        sys.exit("demo: a training process failed; its error stands above")
    return [float(line) for line in done.stdout.split()]


def show_losses(losses: dict[str, list[float]]) -> None:
    table = Table(title=f"Losses, trained for real on {RANKS} processes over gloo", title_justify="left")
    table.add_column("step", justify="right")
    for name in losses:
        table.add_column(name, justify="right")
    for step, row in enumerate(zip(*losses.values())):
        table.add_row(str(step), *(f"{loss:.12f}" for loss in row))
    console.print(table)
    plain, *others = losses.values()
    worst = max(abs(a - b) / abs(b) for other in others for a, b in zip(other, plain, strict=True))
    console.print(f"Largest relative difference from one device: {worst:.1e}")
    if worst > 1e-9:
        sys.exit("demo: the losses differ")


def main() -> None:
    torch.set_num_threads(1)
    with console.status("capturing the model"):
        graph = ss.capture(workload())
    show_graph(graph)
    topology = ss.Topology.parse(f"cpu:1x{RANKS}")
    strategies = {
        "data parallel": ss.baselines.data_parallel(graph, topology),
        "random": ss.baselines.random(graph, topology, seed=4),
    }
    show_simulations(graph, topology, strategies)
    with console.status("training on one device"):
        losses = {"one device": train_plain()}
    for name, strategy in strategies.items():
        with console.status(f"training on {RANKS} processes: {name}"):
            losses[name] = train_on_processes(strategy)
    show_losses(losses)


if __name__ == "__main__":
    main()
