"""All that a report shows, as JSON; `assets/` draws it. Columns of numbers travel as gzip of their bytes."""

from __future__ import annotations

import base64
import gzip
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from ..files import version
from ..graph import Op, OperatorGraph
from ..simulator import KINDS, Simulation
from ..strategy import Strategy
from .breakdown import breakdown_of
from .choices import Comparison
from .layers import Layer, folds_of, layers_of
from .trace import Happening
from .words import closing, kept, summary, telling, titled, traffic

FORMAT = 1
_TYPES = {"u8": "u1", "u16": "<u2", "u32": "<u4", "i32": "<i4", "f64": "<f8"}


@dataclass(frozen=True)
class Approach:
    """A strategy beside others, and what it took to find it."""

    name: str
    simulation: Simulation
    search_seconds: float = 0.0


@dataclass(frozen=True)
class Report:
    """What is known of a strategy; what is empty or None is left out of the page."""

    title: str
    simulation: Simulation
    comparison: Comparison | None = None
    name: str = "this strategy"
    setting: Sequence[tuple[str, str]] = ()
    figures: Sequence[tuple[str, str]] = ()
    approaches: Sequence[Approach] = ()
    # Proposals, seconds, and seconds of the best iteration so far; the last row is the end of the search.
    curve: Sequence[tuple[int, float, float]] = ()
    happenings: Sequence[Happening] = field(default=())  # of a step that really ran


def payload_of(report: Report) -> dict[str, Any]:
    sim = report.simulation
    layers = layers_of(sim.strategy)
    data_parallel = report.comparison.theirs.makespan_ns if report.comparison else None
    return {
        "format": FORMAT,
        "title": report.title,
        "version": version(),
        "setting": [list(row) for row in report.setting],
        "headline": {
            "makespan": sim.makespan_ns,
            "data_parallel": data_parallel,
            "strategy": report.name,
            "figures": [list(row) for row in report.figures],
        },
        "devices": [{"name": d.name, "kind": d.kind, "node": d.node, "memory": d.memory} for d in sim.topology.devices],
        "cluster": _cluster(sim),
        "ops": _ops(sim.graph, sim.strategy, layers),
        "edges": _edges(sim.graph),
        **_drawing(sim.graph, layers),
        "timeline": _timeline(sim),
        "real": _real(report.happenings),
        "time": asdict(breakdown_of(sim)),
        "memory": {name: np.asarray(values).tolist() for name, values in asdict(sim.memory).items()},
        "search": _search(report, data_parallel),
        "approaches": _approaches(report, data_parallel),
        "words": _words(report.comparison, layers),
    }


def column(values: Any, kind: str) -> dict[str, Any]:
    array = np.ascontiguousarray(values, _TYPES[kind])
    packed = gzip.compress(array.tobytes(), 6, mtime=0)
    return {"type": kind, "length": len(array), "data": base64.b64encode(packed).decode()}


def _cluster(sim: Simulation) -> dict[str, Any]:
    topology, busy = sim.topology, sim.busy
    vertices = [{"name": d.name, "device": i, "node": d.node} for i, d in enumerate(topology.devices)]
    vertices += [{"name": name, "device": None, "node": None} for name in topology.switches]
    places = {vertex["name"]: i for i, vertex in enumerate(vertices)}
    links = []
    for link in topology.links:
        ways = (f"{link.source}→{link.target}", f"{link.target}→{link.source}")
        names = ways if link.duplex else (f"{link.source}↔{link.target}",)
        ends = {"source": places[link.source], "target": places[link.target]}
        links.append(
            {**ends, "bandwidth": link.bandwidth, "duplex": link.duplex, "busy": [busy[name] for name in names]}
        )
    return {"vertices": vertices, "links": links}


def _ops(graph: OperatorGraph, strategy: Strategy, layers: Sequence[Layer]) -> list[dict[str, Any]]:
    layer_of = {op: number for number, layer in enumerate(layers) for op in layer.ops}
    return [
        {
            "name": op.name,
            "type": op.kind,
            "layer": layer_of[i],
            "dims": [{"name": dim.name, "size": dim.size, "kind": dim.kind} for dim in op.dims],
            "degrees": dict(strategy[op.name].degrees),
            "devices": list(strategy[op.name].devices),
            "kept": ", ".join(kept(strategy[op.name])),
            "flops": op.flops,
            "weights": _weights(graph, op),
            "output": "x".join(map(str, op.values[op.outputs[0].value].shape)),
        }
        for i, op in enumerate(graph.ops)
    ]


def _weights(graph: OperatorGraph, op: Op) -> int:
    return sum(graph.tensors[o.tensor].bytes for o in op.inputs if graph.tensors[o.tensor].source == "parameter")


def _edges(graph: OperatorGraph) -> list[list[int]]:
    found = {
        (graph.producer[operand.tensor], i): graph.tensors[operand.tensor].bytes
        for i, op in enumerate(graph.ops)
        for operand in op.inputs
        if operand.tensor in graph.producer
    }
    return [[source, target, size] for (source, target), size in found.items()]


def _drawing(graph: OperatorGraph, layers: list[Layer]) -> dict[str, Any]:
    folds = folds_of(graph, layers)
    fold_of = {layer: number for number, fold in enumerate(folds) for member in fold.members for layer in member}
    return {
        "layers": [
            {"name": layer.name, "ops": list(layer.ops), "count": len(layer.ops), "fold": fold_of.get(number)}
            for number, layer in enumerate(layers)
        ],
        "folds": [
            {"name": fold.name, "count": len(fold.members), "members": [list(member) for member in fold.members]}
            for fold in folds
        ],
    }


def _timeline(sim: Simulation) -> dict[str, Any]:
    tasks, native = sim.tasks, sim.native
    after = [sim.predecessors(row) for row in range(len(tasks))]
    begin = np.cumsum([0, *map(len, after)])
    devices = sim.topology.num_devices
    lanes = [{"name": n, "kind": "device" if i < devices else "link"} for i, n in enumerate(sim.topology.resources)]
    kinds = {"kind": "u8", "op": "i32", "part": "i32", "microbatch": "i32", "bytes": "f64"}
    kinds |= {"ready": "f64", "start": "f64", "end": "f64"}
    return {
        "makespan": sim.makespan_ns,
        "microbatches": sim.strategy.microbatches,
        "kinds": list(KINDS),
        "lanes": lanes,
        "tasks": {name: column(tasks[name], kind) for name, kind in kinds.items()},
        "after": {"begin": column(begin, "u32"), "task": column([i for rows in after for i in rows], "u32")},
        "holds": {
            "task": column(native.hold_rows, "u32"),
            "lane": column(native.hold_resources, "u16"),
            "start": column(sim.timeline.hold_start, "f64"),
            "duration": column(native.hold_durations, "f64"),
        },
        "critical": column(sim.critical_path, "u32"),
    }


def _real(happenings: Sequence[Happening]) -> dict[str, Any] | None:
    if not happenings:
        return None
    ranks, names, kinds = (_numbered(values) for values in zip(*((h.rank, _named(h), h.kind) for h in happenings)))
    spans = {
        "lane": column([ranks[h.rank] for h in happenings], "u16"),
        "name": column([names[_named(h)] for h in happenings], "u32"),
        "kind": column([kinds[h.kind] for h in happenings], "u8"),
        "start": column([h.start for h in happenings], "f64"),
        "duration": column([h.end - h.start for h in happenings], "f64"),
        "bytes": column([h.bytes for h in happenings], "f64"),
    }
    return {
        "makespan": max(h.end for h in happenings),
        "lanes": [{"name": f"rank {rank}", "lane": rank} for rank in ranks],
        "names": list(names),
        "kinds": list(kinds),
        "spans": spans,
    }


def _named(happening: Happening) -> str:
    return f"{happening.kind} {happening.what}".strip()


def _numbered(values: Iterable[Any]) -> dict[Any, int]:
    return {value: number for number, value in enumerate(sorted(set(values)))}


def _search(report: Report, data_parallel: int | None) -> dict[str, Any] | None:
    if not report.curve:
        return None
    curve = [[proposals, seconds, makespan * 1e9] for proposals, seconds, makespan in report.curve]
    return {"curve": curve, "data_parallel": data_parallel, "method": report.name}


def _approaches(report: Report, data_parallel: int | None) -> list[dict[str, Any]] | None:
    rows = []
    for approach in report.approaches:
        sim = approach.simulation
        row = {
            "name": approach.name,
            "makespan": sim.makespan_ns,
            "speed_up": (data_parallel or sim.makespan_ns) / sim.makespan_ns,
            "bytes_moved": sim.bytes_moved,
            "compute_ns": sim.compute_time * 1e9,
            "exposed_ns": sim.exposed_communication * 1e9,
            "peak_memory": max(sim.peak_memory),
            "search_seconds": approach.search_seconds,
            "fits": sim.fits,
            "chosen": approach.name == report.name,
        }
        rows.append(row)
    return rows or None


def _words(comparison: Comparison | None, layers: Sequence[Layer]) -> dict[str, Any] | None:
    if comparison is None:
        return None
    layer_of = {op: number for number, layer in enumerate(layers) for op in layer.ops}
    choices = [
        {
            "layers": sorted({layer_of[op] for op in choice.ops}),
            "title": titled(choice),
            "sentence": traffic(choice, comparison),
            "gain": choice.time,
        }
        for choice in telling(comparison)
    ]
    return {"summary": summary(comparison), "choices": choices, "closing": closing(comparison)}
