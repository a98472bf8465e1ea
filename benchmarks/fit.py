"""How near analytic costs come to an H200, and the figures that bring them there.

python -m benchmarks.fit [--write | --without MODEL]

Half of the signatures in `data/h200.json` are fitted to, the other half is reported on; which half is a hash's choice.
A part is on one side in all precisions, but other parts of its op may be on the other; --without fits to all models but
one, and reports on that. The shipped figures are held against the data; --write fits them anew and replaces those in
`devices.yaml`. Launches are fitted to what hosts took for whole steps, too, of all models.
"""

from __future__ import annotations

import json
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

import soapstone as ss
from soapstone import costs
from soapstone.costs.analytic.analytic_costs import stages_of
from soapstone.costs.analytic.kernels import Kernel
from soapstone.costs.analytic.seconds import Figures, kernel_seconds
from soapstone.costs.analytic.table import device_of, figures_of, precision_of, row_of, speed_of, table
from soapstone.graph import OperatorGraph
from soapstone.loading import Request, load_graph

from .curves import PRECISIONS

DATA = Path(__file__).parent / "data" / "h200.json"
YAML = Path(costs.__file__).parent / "devices.yaml"
SHORTEST = 1000  # ns: less is an empty backward, not a kernel
ALONE = 0.6  # of backward's launches: what is left of them in a whole step
BLOCKED = 1.5  # times as long: a host that waits, since it may only be so far ahead of its GPU
LONG = 0.2  # how much more a longer part counts: whole steps are made of them
ROWS = (4, 8, 16, 32, 64, 256)
LINEARS = {(2048, 4096): (17, 26, 35, 31, 39, 100), (1024, 32000): (52, 71, 75, 78, 101, 355)}
WAYS = ("forward", "backward", "finish forward", "finish backward")
Group = tuple[str, str]  # a row of the table, and a precision


@dataclass(frozen=True)
class Sample:
    """What one stage of a part took, in seconds; its host's time in `launch`."""

    family: str
    precision: str
    way: str
    held_out: bool
    seconds: float
    launch: float
    kernels: Sequence[Kernel]
    model: str


def measured() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(DATA.read_text(encoding="utf-8"))
    return found


def graph_of(row: dict[str, Any], cut: int = 1) -> OperatorGraph:
    dtype = "bfloat16" if row["precision"] == "bfloat16" else "float32"
    return load_graph(Request(row["model"], row["batch"] // cut, dtype=dtype))


def samples(models: Iterable[dict[str, Any]]) -> list[Sample]:
    """Each distinct one once."""
    found: dict[Any, Sample] = {}
    for row in models:
        graph = graph_of(row)
        for name, extents, combines, *numbers in row["ops"]:
            index = graph.index(name)
            shape = _shapes(graph, index)
            family = row_of(graph.ops[index].steps[graph.ops[index].head].kind)
            held_out = sha256(f"{shape} {extents} {combines}".encode()).digest()[0] % 2 == 1
            stages = stages_of(graph, index, tuple(extents), combines)
            for way, kernels, ns, launch in zip(WAYS, stages, numbers[:4], numbers[4:]):
                if ns >= SHORTEST and kernels:
                    key = (shape, tuple(extents), combines, way, row["precision"], tuple(kernels))
                    made = (family, row["precision"], way, held_out, ns * 1e-9, launch * 1e-9, kernels, row["model"])
                    found.setdefault(key, Sample(*made))
    return list(found.values())


def _shapes(graph: OperatorGraph, index: int) -> str:
    """What an op computes, whatever its dtype."""
    op = graph.ops[index]
    return str([(step.kind, [op.values[v].shape for v in (*step.inputs, *step.outputs)]) for step in op.steps])


class Model:
    """The kernels of many samples, in arrays by row and precision."""

    def __init__(self, given: Sequence[Sample]) -> None:
        device, kernels = device_of("h200"), defaultdict[Group, list[Any]](list)
        self.seconds = np.array([sample.seconds for sample in given])
        peaks = {}
        for number, sample in enumerate(given):
            for kernel in sample.kernels:
                tf32 = sample.precision == "tf32"
                group = kernel.row, precision_of(kernel.row, kernel.dtype, "h200", tf32)
                peaks[group] = device["tf32" if group[1] == "tf32" else kernel.dtype]
                slower = kernel.plain if group[1] == "plain" else kernel.tensor
                kernel = kernel._replace(sums=kernel.sums * slower, tile=kernel.tile * slower)
                kernels[group].append((number, *kernel[2:-2]))
        self.groups = {group: np.array(rows).T for group, rows in kernels.items()}
        self.rates = {group: (peak, device["bandwidth"], device["units"]) for group, peak in peaks.items()}

    def used(self, group: Group) -> list[bool]:
        """Which figures matter: a pass has no products."""
        _, _, sums, _, _, lane, _ = self.groups[group]
        product = bool(sums.any())
        return [True, product, True, product, product or bool(lane.any())]

    def part(self, group: Group, figures: Figures) -> np.ndarray:
        """What a group's kernels add to each sample."""
        number, *features, repeats = self.groups[group]
        times = kernel_seconds(figures, *self.rates[group], *features) * repeats
        return np.bincount(number.astype(int), times, len(self.seconds))

    def predicted(self, figures: dict[Group, Figures]) -> np.ndarray:
        return sum((self.part(group, figures[group]) for group in self.groups), np.zeros(len(self.seconds)))


def shipped(groups: Iterable[Group]) -> dict[Group, Figures]:
    return {(row, precision): figures_of(row, precision) for row, precision in groups}


LEAST = Figures(1.5e-6, 0.01, 0.01, 0.1, 0.0005)
MOST = Figures(1e-3, 1.0, 1.5, 3e3, 10.0)  # what a cache still holds is faster than memory
USUAL, PULL = Figures(3e-6, 0.6, 0.6, 20.0, 0.5), 0.002  # where a figure stays that the data say little of


def fitted(model: Model, weights: np.ndarray, rounds: int = 60) -> dict[Group, Figures]:
    """A search of its own for each row: one figure a step up or down, or all of them at random, kept where that lessens
    the error; with ever smaller steps."""
    figures, rng, step = dict.fromkeys(model.groups, USUAL), np.random.default_rng(0), np.log(2)
    total = model.predicted(figures)
    for _ in range(rounds):
        for group in model.groups:
            used = np.diag(model.used(group)).astype(float)
            mine = np.unique(model.groups[group][0].astype(int))
            before, best = model.part(group, figures[group]), np.inf
            for move in (np.zeros(len(LEAST)), *used, *-used, *rng.normal(size=(10, len(LEAST))) @ used):
                tried = Figures(*np.clip(figures[group] * np.exp(step * move), LEAST, MOST).tolist())
                after = model.part(group, tried)
                unusual = float(((np.log(np.divide(tried, USUAL)) @ used) ** 2).sum())
                found = _error(total - before + after, model.seconds, weights, mine)
                found += PULL * weights[mine].sum() * unusual
                if found < best:
                    total, before, best, figures[group] = total - before + after, after, found, tried
        step = max(step * 0.93, 0.01)
    return figures


def _error(total: np.ndarray, seconds: np.ndarray, weights: np.ndarray, mine: np.ndarray) -> float:
    """Near the median's sum of distances, and smooth where that has a corner."""
    off = np.log(np.maximum(total[mine], 1e-9) / seconds[mine])
    return float((weights[mine] * (np.sqrt(off**2 + 0.03**2))).sum())


class Unstepped(ss.AnalyticCosts):
    """Without an optimizer's step, as the steps were measured."""

    def update(self, device_kind: str, optimizer: str) -> tuple[int, float]:
        return 0, 0.0


def whole_steps(models: Iterable[dict[str, Any]]) -> Iterator[tuple[str, str, int, float, float]]:
    """Model, precision, cut, and milliseconds of its training step, predicted and measured."""
    topology = ss.Topology.parse("h200:1x1")
    for row in models:
        for cut, step in row["steps"].items():
            if step is not None:
                graph = graph_of(row, int(cut))
                training = ss.Training(Unstepped(tf32=row["precision"] == "tf32"))
                strategy = ss.baselines.data_parallel(graph, topology)
                found = ss.simulate(graph, topology, strategy, training=training)
                yield row["model"], row["precision"], int(cut), found.makespan * 1e3, step["step_ms"]


def launch_counts(kernels: Iterable[Kernel]) -> Counter[tuple[str, bool]]:
    """By name of a row, and whether it is a backward one."""
    found = Counter[tuple[str, bool]]()
    for kernel in kernels:
        name, _, way = kernel.row.partition(".")
        found[name, bool(way) and way != "forward"] += kernel.repeats
    return found


def launch_rows(given: Sequence[Sample], models: Iterable[dict[str, Any]]) -> Iterator[tuple[Any, float, float]]:
    """Launches by row, the seconds that a host took for them, and a weight. Forward is measured part by part; backward
    was so with one part a call, which is too long, so whole steps have more weight than parts."""
    for sample in given:
        if sample.way == "forward" and sample.launch > 0:
            yield launch_counts(sample.kernels), sample.launch, 1.0
        elif sample.launch > 0:
            yield launch_counts(sample.kernels), sample.launch * ALONE, 0.2
    for row in models:
        hosts = [step["host_ms"] for step in row["steps"].values() if step is not None]
        running = [host for host in hosts if host < BLOCKED * min(hosts)]
        graph, total = graph_of(row), Counter[tuple[str, bool]]()
        for index, op in enumerate(graph.ops):
            forward, backward, *_ = stages_of(graph, index, tuple(dim.size for dim in op.dims), False)
            total += launch_counts([*forward, *backward])
        yield from ((total, host * 1e-3, 30.0) for host in running)


def fitted_launches(rows: Iterable[tuple[Any, float, float]]) -> dict[str, list[float]]:
    """By name of a row, forward and backward, in launches of a pointwise kernel."""
    counts, seconds, weights = zip(*rows)
    names = sorted({name for count in counts for name in count})
    matrix = np.array([[count[name] for name in names] for count in counts], float)
    wanted, weighted, everything = np.array(seconds), np.array(weights), np.arange(len(seconds))
    values = np.full(len(names), 1.5e-5)
    total, step = matrix @ values, 2.0
    best = _error(total, wanted, weighted, everything)
    for _ in range(60):
        for column in range(len(names)):
            for factor in (step, 1 / step):
                value = min(max(values[column] * factor, 2e-6), 6e-4)
                tried = total + matrix[:, column] * (value - values[column])
                error = _error(tried, wanted, weighted, everything)
                if error < best:
                    best, total, values[column] = error, tried, value
        step = max(step**0.93, 1.01)
    unit = device_of("h200")["launch"] * 1e-9
    found = defaultdict[str, list[float]](lambda: [1.0, 1.0])
    for (name, backward), value in zip(names, values):
        found[name][backward] = round(float(value / unit), 1)
    return found


def write(model: Model, figures: dict[Group, Figures], launches: dict[str, list[float]]) -> None:
    """Replace the rows of `devices.yaml` that were fitted; others stay."""
    text = YAML.read_text(encoding="utf-8")
    for row in {row for row, _ in figures}:
        known = dict(table()["figures"][row])
        for precision in (precision for name, precision in figures if name == row):
            base, *others = (x for x, used in zip(figures[row, precision], model.used((row, precision))) if used)
            known[precision] = [round(base * 1e6, 1), *(float(f"{x:.2g}") for x in others)]
        line = ", ".join(f"{name}: {known[name]}" for name in ("plain", "tf32", "half") if name in known)
        text = re.sub(rf"^  {re.escape(row)}: .*$", f"  {row}: {{{line}}}", text, flags=re.M)
    lines = "\n".join(f"  {name}: {numbers}" for name, numbers in sorted(launches.items()))
    text = re.sub(r"^launches:.*\n(  .*\n)*", f"launches:\n{lines}\n", text, flags=re.M)
    YAML.write_text(text, encoding="utf-8")


def report(given: Sequence[Sample], errors: np.ndarray) -> Table:
    """Median and 90th percentile of what was held out, by family and precision."""
    shown = Table("family", *(f"{name}: parts, median, p90" for name in (*PRECISIONS, "all")), title="Not fitted to")
    for family in sorted({sample.family for sample in given}):
        cells = []
        for precision in (*PRECISIONS, None):
            mine = [sample.family == family and precision in (None, sample.precision) for sample in given]
            middle, most = np.percentile(errors[mine], (50, 90)) if any(mine) else (0, 0)
            cells.append(f"{sum(mine)}, {middle:.0%}, {most:.0%}")
        shown.add_row(family, *cells)
    return shown


def linear_table() -> Table:
    """What the project's issue measured, on another day."""
    shown = Table("linear", *map(str, ROWS), title="Forward of a linear in float32 by rows, us: predicted / measured")
    for (inputs, outputs), numbers in LINEARS.items():
        graph = ss.capture(torch.nn.Linear(inputs, outputs), (torch.zeros(256, inputs),), loss=torch.sum)
        found = [ss.AnalyticCosts().times(graph, 0, (rows, outputs, inputs), "h200", False).forward for rows in ROWS]
        shown.add_row(f"{inputs} -> {outputs}", *(f"{ns / 1e3:.0f} / {us}" for ns, us in zip(found, numbers)))
    return shown


def steps_table(models: Iterable[dict[str, Any]]) -> Table:
    title = "A training step at the full batch, half and an eighth, ms: predicted / measured"
    shown = Table("model", *PRECISIONS, title=title)
    found = defaultdict[tuple[str, str], list[str]](list)
    for model, precision, _, ours, real in whole_steps(models):
        found[model, precision].append(f"{ours:.1f} / {real:.1f}")
    for model in dict.fromkeys(model for model, _ in found):
        shown.add_row(model, *("\n".join(found[model, precision]) for precision in PRECISIONS))
    return shown


def fit_to(train: Sequence[Sample]) -> tuple[Model, dict[Group, Figures]]:
    """Families have a say that grows with the root of how many parts they have."""
    model = Model(train)
    sizes = Counter((sample.family, sample.precision, sample.way) for sample in train)
    weights = [sizes[s.family, s.precision, s.way] ** -0.5 * s.seconds**LONG for s in train]
    return model, fitted(model, np.array(weights))


def without(given: Sequence[Sample], name: str) -> tuple[list[Sample], np.ndarray]:
    """The parts of a model, and how far off they are where none of them is fitted to."""
    own = [sample for sample in given if sample.model == name]
    _, figures = fit_to([sample for sample in given if sample.model != name])
    model = Model(own)
    return own, np.abs(
        model.predicted({group: figures.get(group, USUAL) for group in model.groups}) / model.seconds - 1
    )


def main() -> None:
    models = measured()["models"]
    given = samples(models)
    console = Console(width=160, highlight=False)
    if "--without" in sys.argv:
        console.print(report(*without(given, sys.argv[-1])))
        return
    if "--write" in sys.argv:
        train = [sample for sample in given if not sample.held_out]
        write(*fit_to(train), fitted_launches(launch_rows(train, models)))
        table.cache_clear()
        speed_of.cache_clear()
    held_out = [sample for sample in given if sample.held_out]
    model = Model(held_out)
    console.print(report(held_out, np.abs(model.predicted(shipped(model.groups)) / model.seconds - 1)))
    console.print(linear_table())
    console.print(steps_table(models))


if __name__ == "__main__":
    main()
