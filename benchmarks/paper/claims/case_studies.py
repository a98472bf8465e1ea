"""Claim 14: what the search chooses for Inception-v3 and NMT on 4 GPUs, drawn as the paper draws it.

An op is a square, cut from top to bottom by sample and from left to right by whatever else it is split in; a colour is
a GPU. Inception-v3's ops stand from left to right by depth, NMT's in a row for each layer, a column for each step.
"""

from __future__ import annotations

import re
from collections import defaultdict
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

import soapstone as ss
from soapstone.graph import Op, OperatorGraph

from ..claim import NOT_RUN, Claim, Ours, table
from ..figures import COLOURS, figure
from ..jobs import Found, Job, Results
from ..scale import Scale
from ..settings import MODELS, Setting, search

if TYPE_CHECKING:
    from matplotlib.axes import Axes

DRAWN = {"inception-v3": "p100:1x4", "nmt": "p100:1x4"}
CASES = [(model, machine) for model in DRAWN for machine in ("p100:1x4", "k80:1x4", "h100:1x4")]
READING = "whole"  # so that gradients matter, as they did on the paper's machines
STEPS = 16  # of NMT that are drawn
PAIRS = ({0, 1}, {2, 3})  # that share a switch on K80 nodes


def case_studies(model: str, machine: str, budget: float) -> Found:
    setting = Setting(model, machine, READING)
    graph, topology = setting.graph, setting.topology
    result = search(graph, topology, budget=budget)
    data = setting.simulated(ss.baselines.data_parallel(graph, topology))
    sim = setting.simulated(result.strategy)
    places = (_by_depth if model == "inception-v3" else _by_step)(graph)
    ops = {op.name: (*places[op.name], _grid(op, result.strategy[op.name])) for op in graph.ops if op.name in places}
    used = [set(result.strategy[op.name].devices) for op in graph.ops]
    return {
        "makespan": sim.makespan,
        "data": data.makespan,
        "sync": sim.moved["sync"],
        "data_sync": data.moved["sync"],
        "ops": ops,
        "pairs": [sum(devices in PAIRS for devices in used), sum(len(devices) == 2 for devices in used)],
    }


def _grid(op: Op, configuration: ss.Configuration) -> list[list[int]]:
    """Devices, in rows by sample."""
    degrees = configuration.degrees_of(op)
    rows = prod(n for n, dim in zip(degrees, op.dims) if dim.kind == "sample")
    axes = sorted(range(len(degrees)), key=lambda i: op.dims[i].kind != "sample")
    grid: list[list[int]] = np.reshape(configuration.devices, degrees).transpose(axes).reshape(rows, -1).tolist()
    return grid


def _by_depth(graph: OperatorGraph) -> dict[str, tuple[float, float]]:
    """A column for each op's distance from the input, centred."""
    makers = {operand.tensor: op for op in graph.ops for operand in op.outputs}
    depth: dict[str, int] = {}
    for op in graph.ops:
        before = [depth[makers[operand.tensor].name] for operand in op.inputs if operand.tensor in makers]
        depth[op.name] = 1 + max(before, default=-1)
    columns = defaultdict(list)
    for name, x in depth.items():
        columns[x].append(name)
    return {name: (x, y - (len(own) - 1) / 2) for x, own in columns.items() for y, name in enumerate(own)}


def _by_step(graph: OperatorGraph) -> dict[str, tuple[float, float]]:
    """A row for each layer, its first steps from left to right."""
    layers = list(dict.fromkeys(_layer(op.name) for op in graph.ops))
    seen: dict[str, int] = defaultdict(int)
    found = {}
    for op in graph.ops:
        layer = _layer(op.name)
        if seen[layer] < STEPS:
            found[op.name] = (float(seen[layer]), float(layers.index(layer)))
        seen[layer] += 1
    return found


def _layer(name: str) -> str:
    return re.sub(r"_\d+$", "", name)


def job(model: str, machine: str, scale: Scale) -> Job:
    return Job(case_studies, {"model": model, "machine": machine, "budget": 5 * scale.budget})


def wanted(scale: Scale) -> list[Job]:
    return [job(model, machine, scale) for model, machine in CASES]


def described(scale: Scale, results: Results, model: str, machine: str) -> str:
    row = results.get(job(model, machine, scale))
    if row is None:
        return NOT_RUN
    time, sync = 1 - row["makespan"] / row["data"], 1 - row["sync"] / max(row["data_sync"], 1)
    adjacent, both = row["pairs"]
    near = f", {adjacent} of {both} ops on two devices are on neighbours" if both else ""
    return f"{MODELS[model]}: {time:.0%} less time, {sync:.0%} fewer bytes of gradients{near}"


def ours(scale: Scale, results: Results) -> Ours:
    there, today = (
        "; ".join(
            f"`{machine}`: {described(scale, results, model, machine)}"
            for model, machine in CASES
            if (machine[0] == "h") == late
        )
        for late in (False, True)
    )
    return Ours(f"with the whole batch 64: {there}", today)


def more(scale: Scale, results: Results) -> str:
    rows = [[f"`{machine}`", described(scale, results, model, machine)] for model, machine in CASES]
    return table(["machine", "against data parallelism, whole batch 64"], rows)


def draw(scale: Scale, results: Results, path: Path) -> None:
    with figure(path, (13, 8.5)) as drawn:
        for axes, (model, machine) in zip(drawn.subplots(2, 1, height_ratios=[1, 6]), DRAWN.items()):
            axes.set(title=f"{MODELS[model]}, {machine}", aspect="equal")
            axes.axis("off")
            for name, (x, y, grid) in results[job(model, machine, scale)]["ops"].items():
                _square(axes, x, y, grid)
                if model == "nmt" and x == 0:
                    axes.text(-0.7, -y, _layer(name), ha="right", va="center", fontsize="small")
            axes.autoscale_view()


def _square(axes: Axes, x: float, y: float, grid: list[list[int]], size: float = 0.8) -> None:
    from matplotlib.patches import Rectangle

    height = size / len(grid)
    for i, row in enumerate(grid):
        width = size / len(row)
        for j, device in enumerate(row):
            corner = (x - size / 2 + j * width, -y + size / 2 - (i + 1) * height)
            axes.add_patch(Rectangle(corner, width, height, color=COLOURS[device], linewidth=0))


CLAIM = Claim(
    14,
    "case_studies",
    "Case studies on 4 GPUs: splits by layer, fewer gradients to sum, neighbours preferred on K80",
    "Inception-v3 12% less time, 75% less synchronization; NMT: embedding on few GPUs, softmax by channel",
    "NMT's layers come out as in the paper: recurrent layers side by side on two devices each, softmax "
    "(`head`) by channel; but embeddings are split by channel instead of being put on few GPUs. "
    "Inception-v3's branches mix sample and channel splits, and half of the gradients need not be summed; as "
    "sums overlap with the computation, that saves 2% instead of 12%. Whether K80s that share a switch are "
    "preferred does not show: our space has such pairs first on every machine, and P100s, whose pairs are all "
    "alike, are paired the same way.",
    wanted,
    ours,
    draw,
    more,
)
