"""A timeline as Chrome and Perfetto read it: a row for each device and one for each direction of a link."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from ..files import write_atomically
from ..simulator import KINDS, Simulation

DEVICES, LINKS = 1, 2  # Perfetto's processes


def save_trace(sim: Simulation, path: str | Path) -> None:
    """Write the timeline as JSON for ui.perfetto.dev or chrome://tracing. Raises SoapstoneError, and leaves no half."""
    write_atomically(path, json.dumps({"displayTimeUnit": "ms", "traceEvents": [*_names(sim), *_events(sim)]}))


class Happening(Protocol):
    """Something that a rank really did; ns since the step began."""

    @property
    def rank(self) -> int: ...
    @property
    def kind(self) -> str: ...
    @property
    def what(self) -> str: ...
    @property
    def start(self) -> int: ...
    @property
    def end(self) -> int: ...
    @property
    def bytes(self) -> int: ...


def save_events(happenings: Sequence[Happening], path: str | Path) -> None:
    """Write a step that really ran in the same format. Raises SoapstoneError, and leaves no half."""
    ranks = sorted({happening.rank for happening in happenings})
    names = [_label("process_name", DEVICES, 0, "devices")]
    names += [_label("thread_name", DEVICES, rank, f"rank {rank}") for rank in ranks]
    events = [
        {
            "ph": "X",
            "name": f"{h.kind} {h.what}".strip(),
            "cat": h.kind,
            "pid": DEVICES,
            "tid": h.rank,
            "ts": h.start / 1000,
            "dur": (h.end - h.start) / 1000,
            "args": {"bytes": h.bytes},
        }
        for h in happenings
    ]
    write_atomically(path, json.dumps({"displayTimeUnit": "ms", "traceEvents": [*names, *events]}))


def _names(sim: Simulation) -> list[dict[str, Any]]:
    found = [_label("process_name", process, 0, name) for process, name in ((DEVICES, "devices"), (LINKS, "links"))]
    for resource, name in enumerate(sim.topology.resources):
        process = DEVICES if resource < sim.topology.num_devices else LINKS
        found.append(_label("thread_name", process, resource, name))
        found.append({**_label("thread_sort_index", process, resource, ""), "args": {"sort_index": resource}})
    return found


def _label(what: str, process: int, thread: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": what, "pid": process, "tid": thread, "args": {"name": name}}


def _events(sim: Simulation) -> list[dict[str, Any]]:
    tasks, native = sim.tasks, sim.native
    starts = sim.timeline.hold_start.tolist()
    holds = zip(native.hold_rows.tolist(), native.hold_resources.tolist(), native.hold_durations.tolist(), starts)
    critical = set(sim.critical_path)
    found = []
    for row, resource, duration, start in holds:
        task = tasks[row]
        kind, op = KINDS[task["kind"]], int(task["op"])
        name = f"{kind} {sim.graph.ops[op].name}" if op >= 0 else kind
        facts = {"part": int(task["part"]), "bytes": int(task["bytes"]), "critical": row in critical, "task": row}
        if sim.strategy.microbatches > 1:
            facts["microbatch"] = int(task["microbatch"])
        process = DEVICES if resource < sim.topology.num_devices else LINKS
        span = {"ts": start / 1000, "dur": duration / 1000}
        found.append({"ph": "X", "name": name, "cat": kind, "pid": process, "tid": resource, **span, "args": facts})
    return found
