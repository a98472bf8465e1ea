"""The simulator's engines side by side on one chain of proposals: the paper's moves (one op, a configuration drawn from
its space), a data-parallel start, beta = 1 / (5e-4 of its time), the whole batch 64, one thread.

Every proposal is played with its limit by the engine that `Simulator.propose` chooses. Every so often the next few
proposals are also given to the others, which have no limit: the kept graph played in full, delta, and a task graph
made from scratch and played in full (by our own full engine, which is kinder to it than a heap). Few times, and one
engine after the other, since a task graph from scratch leaves all others' caches cold. Op times are known
before the clock starts; the geometry is not."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from math import log
from multiprocessing import get_context
from pathlib import Path

from rich.console import Console
from rich.progress import track
from rich.table import Table

import soapstone as ss
from soapstone import _core
from soapstone.loading import Request, load_graph
from soapstone.simulator import FASTEST, KnownTimes, machine_of
from soapstone.strategy import Native

MODELS: dict[str, tuple[str, dict[str, str]]] = {
    "Inception-v3, local": ("inception-v3", {"batch_norm": "local"}),
    "Inception-v3, global": ("inception-v3", {}),
    "ResNet-101, local": ("resnet-101", {"batch_norm": "local"}),
    "RNNLM": ("rnnlm", {}),
    "NMT": ("nmt", {}),
    "Llama 7B": ("llama", {}),
}
SAMPLES = {"p100:1x4": 200, "p100:4x4": 100, "p100:16x4": 25}  # by topology: how often the others are asked,
BREAKS = 25  # and how often the chain stops for them
PROPOSALS = 5000
PHASES = ("ops", "flows", "bounds", "links", "play", "undo", "accept")
Move = tuple[int, Native, float]  # op, its configuration, a uniform draw


@dataclass
class Row:
    """What one chain showed. Seconds are for one proposal."""

    ops: int
    tasks: tuple[int, int] = (0, 0)  # at the start and at the end
    best: float = 0.0
    rebuild: list[float] = field(default_factory=list)
    full: list[float] = field(default_factory=list)
    delta: list[float] = field(default_factory=list)
    full_task: list[float] = field(default_factory=list)  # seconds for each task of a full play
    rejected: tuple[float, float] = (0.0, 0.0)  # shares: before and during play
    phases: list[float] = field(default_factory=list)  # shares of `best`


def mean(times: list[float]) -> float:
    return sum(times) / len(times)


def timed(run: Callable[[], object]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


class Chain:
    def __init__(self, model: str, options: dict[str, str], text: str) -> None:
        self.graph, topology = load_graph(Request(model, 64, {}, options)), ss.Topology.parse(text)
        self.strategy = ss.baselines.data_parallel(self.graph, topology).native
        self.times = KnownTimes(self.graph, topology, ss.AnalyticCosts())
        self.machine = machine_of(topology, self.times, ss.Training(bucket_bytes=0))
        for op, (degrees, devices, *_) in enumerate(self.strategy):
            self.times.fill(op, degrees, devices)
        self.moves = self._moves(ss.Space(self.graph, topology))

    def _moves(self, space: ss.Space) -> list[Move]:
        rng = random.Random(0)
        options = [space.configurations(op.name) for op in self.graph.ops]
        moves = []
        for _ in range(PROPOSALS):
            op = rng.randrange(len(options))
            configuration = rng.choice(options[op])
            native = configuration.native(self.graph.ops[op])
            self.times.fill(op, *native[:2])
            moves.append((op, native, 1 - rng.random()))
        return moves

    def simulator(self) -> _core.Simulator:
        return _core.Simulator(self.graph.native, self.machine, self.times.native)

    def tried(self, sim: _core.Simulator, changes: list[tuple[int, Native]], engine: str) -> None:
        sim.propose(changes, None, _core.Method[engine])
        sim.reject()

    def rebuilt(self, strategy: list[Native]) -> None:
        self.simulator().begin(strategy)

    def others(self, sim: _core.Simulator, moves: list[Move], row: Row) -> None:
        """The same proposals for the engines without a limit."""
        for engine, times in (("full", row.full), ("delta", row.delta)):
            for op, configuration, _ in moves:
                before = sim.seconds[PHASES.index("play")]

                times.append(timed(partial(self.tried, sim, [(op, configuration)], engine)))
                if engine == "full":
                    row.full_task.append((sim.seconds[PHASES.index("play")] - before) / sim.num_served)
        for op, configuration, _ in moves:
            proposed = [*self.strategy]
            proposed[op] = configuration
            row.rebuild.append(timed(partial(self.rebuilt, proposed)))

    def run(self, samples: int) -> Row:
        sim, row = self.simulator(), Row(len(self.graph.ops))
        first = current = sim.begin(self.strategy)
        started, spent, phases = sim.num_tasks, 0.0, [0.0] * len(PHASES)
        for number, move in enumerate(self.moves):
            op, configuration, u = move
            if number % (PROPOSALS // BREAKS) == 0:
                self.others(sim, self.moves[number : number + samples // BREAKS], row)
            limit, before = current - int(log(u) * 5e-4 * first), sim.seconds
            start = time.perf_counter()
            makespan = sim.propose([(op, configuration)], limit, _core.Method[FASTEST])
            if makespan is not None:
                sim.accept()
                current, self.strategy[op] = makespan, configuration
            spent += time.perf_counter() - start
            phases = [p + b - a for p, a, b in zip(phases, before, sim.seconds)]
        row.tasks, row.best = (started, sim.num_tasks), spent / PROPOSALS
        row.rejected = sim.num_unplayed / PROPOSALS, sim.num_cut_short / PROPOSALS
        row.phases = [p / spent for p in phases]
        return row


def engines(console: Console) -> None:
    speed = Table(title="proposals a second on one chain of 5,000, and how much faster the best is")
    for name in ("model", "devices", "ops", "tasks", "rebuild", "full", "delta", "best", "best / rebuild",
                 "best / full", "delta / rebuild", "delta / full", "full, ns/task"):  # fmt: skip
        speed.add_column(name, justify="left" if name == "model" else "right")
    where = Table(title="where the best engine's time goes")
    for name in ("model", "devices", "unplayed", "cut short", *PHASES):
        where.add_column(name, justify="left" if name == "model" else "right")
    cases = [(label, text) for label in MODELS for text in SAMPLES]
    for label, text in track(cases, "engines", console=console, transient=True):
        row = Chain(*MODELS[label], text).run(SAMPLES[text])
        devices = str(ss.Topology.parse(text).num_devices)
        rebuild, full, delta = mean(row.rebuild), mean(row.full), mean(row.delta)
        speed.add_row(
            label, devices, str(row.ops), f"{row.tasks[0]:,} to {row.tasks[1]:,}",
            *(f"{1 / seconds:,.0f}" for seconds in (rebuild, full, delta, row.best)),
            *(f"{a / b:.1f}x" for a, b in ((rebuild, row.best), (full, row.best), (rebuild, delta), (full, delta))),
            f"{mean(row.full_task) * 1e9:.0f}",
        )  # fmt: skip
        where.add_row(label, devices, *(f"{share:.0%}" for share in (*row.rejected, *row.phases)))
    console.print(speed, where)


def strategies(graph: ss.OperatorGraph, topology: ss.Topology) -> dict[str, ss.Strategy]:
    """Data parallelism, and 128-way data by 8-way channel or heads."""
    mixed = {}
    for op in graph.ops:
        names = [dim.name for dim in op.dims if dim.splittable and dim.size >= 8]
        inner = next((name for name in ("head", "channel", "hidden", "class") if name in names), None)
        degrees = {"sample": 128} | ({inner: 8} if inner else {}) if "sample" in names else {}
        parts = degrees.get("sample", 1) * (8 if degrees and inner else 1)
        mixed[op.name] = ss.Configuration(degrees, tuple(range(0, 1024, 1024 // parts)))
    return {"data": ss.baselines.data_parallel(graph, topology), "128 x 8": ss.Strategy(graph, topology, mixed)}


def simulate_many(name: str) -> tuple[str, ...]:
    graph, topology = load_graph(Request("gpt2", 1024)), ss.Topology.parse("h200:128x8")
    strategy = strategies(graph, topology)[name]
    start = time.perf_counter()
    sim = ss.Simulator(graph, topology, strategy)
    seconds = time.perf_counter() - start
    play = timed(lambda: sim.propose({}, engine="full"))
    # Not ru_maxrss, which begins with what the parent had.
    peak = int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0]) / 2**20
    return name, f"{sim.native.num_tasks:,}", f"{seconds:.2f} s", f"{play:.3f} s", f"{peak:.1f} GiB"


def many_devices(console: Console) -> None:
    table = Table("strategy", "tasks", "from nothing to the makespan", "the play alone", "peak memory of the process",
                  title="GPT-2, batch 1,024, on 1,024 devices (h200:128x8)")  # fmt: skip
    load_graph(Request("gpt2", 1024))  # into the cache, so that no torch is loaded in the processes
    for name in ("data", "128 x 8"):
        with ProcessPoolExecutor(1, get_context("spawn")) as pool:
            table.add_row(*pool.submit(simulate_many, name).result())
    console.print(table)


def main() -> None:
    console = Console(width=190, highlight=False)
    many_devices(console)
    engines(console)


if __name__ == "__main__":
    main()
