"""What a page is told is what the simulation says."""

from __future__ import annotations

import base64
import gzip
import json
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

import soapstone as ss
from soapstone.report import Approach, Report, compared, payload_of
from soapstone.runtime.records import Happening

from ..support.chains import graph_of

TYPES = {"u8": "u1", "u16": "<u2", "u32": "<u4", "i32": "<i4", "f64": "<f8"}
P100 = ss.Topology.parse("p100:2x2")


def unpacked(column: dict[str, Any]) -> np.ndarray:
    values = np.frombuffer(gzip.decompress(base64.b64decode(column["data"])), TYPES[column["type"]])
    assert len(values) == column["length"]
    return values


@pytest.mark.parametrize("name", ["gpt2", "nmt", "inception-v3"])
def test_every_task_op_and_hold_is_told(name: str) -> None:
    graph = graph_of(name)
    sim = ss.simulate(graph, P100, ss.baselines.random(graph, P100, seed=1))
    found = json.loads(json.dumps(payload_of(Report("title", sim))))
    timeline = found["timeline"]
    for column in ("kind", "op", "part", "bytes", "ready", "start", "end"):
        assert unpacked(timeline["tasks"][column]).tolist() == sim.tasks[column].tolist()
    begin, after = (unpacked(timeline["after"][column]).tolist() for column in ("begin", "task"))
    assert [after[a:b] for a, b in pairwise(begin)] == [sim.predecessors(i) for i in range(len(sim.tasks))]
    lanes = [lane["name"] for lane in timeline["lanes"]]
    holds = {key: unpacked(column).tolist() for key, column in timeline["holds"].items()}
    rows = list(zip(holds["task"], (lanes[i] for i in holds["lane"]), holds["start"], holds["duration"]))
    assert rows == [(i, *hold) for i in range(len(sim.tasks)) for hold in sim.resources(i)]
    assert unpacked(timeline["critical"]).tolist() == sim.critical_path
    assert [op["name"] for op in found["ops"]] == [op.name for op in graph.ops]
    assert sorted(op for layer in found["layers"] for op in layer["ops"]) == list(range(len(graph.ops)))
    assert all(i in found["layers"][op["layer"]]["ops"] for i, op in enumerate(found["ops"]))
    for number, fold in enumerate(found["folds"]):
        assert all(found["layers"][i]["fold"] == number for member in fold["members"] for i in member)


def test_links_are_as_busy_as_the_simulation_says() -> None:
    graph = graph_of("nmt")
    sim = ss.simulate(graph, P100, ss.baselines.data_parallel(graph, P100))
    cluster = payload_of(Report("title", sim))["cluster"]
    names = [vertex["name"] for vertex in cluster["vertices"]]
    for link in cluster["links"]:
        source, target = names[link["source"]], names[link["target"]]
        ways = [f"{source}→{target}", f"{target}→{source}"] if link["duplex"] else [f"{source}↔{target}"]
        assert link["busy"] == [sim.busy[way] for way in ways]


def test_a_strategy_fits_where_its_peak_does() -> None:
    graph = graph_of("nmt")
    peak = max(ss.simulate(graph, P100, ss.baselines.data_parallel(graph, P100)).peak_memory)
    for memory, fits in ((peak, True), (peak - 1, False)):
        topology = replace(P100, devices=tuple(replace(device, memory=memory) for device in P100.devices))
        sim = ss.simulate(graph, topology, ss.baselines.data_parallel(graph, topology))
        assert max(sim.memory.bound) > memory
        (row,) = payload_of(Report("title", sim, approaches=[Approach("data", sim)]))["approaches"] or []
        assert row["fits"] == fits


def test_what_is_not_known_is_left_out_and_what_is_known_is_there() -> None:
    graph = graph_of("nmt")
    data = ss.baselines.data_parallel(graph, P100)
    ours = ss.simulate(graph, P100, ss.baselines.expert(graph, P100))
    bare = payload_of(Report("title", ours))
    assert all(bare[key] is None for key in ("real", "search", "approaches", "words"))
    comparison = compared(ours, data)
    ran = [Happening(0, "forward", "encoder", 10, 30), Happening(1, "send", "encoder", 20, 25, 64)]
    rows = [Approach("data", comparison.theirs), Approach("expert", ours, 1.5)]
    full = payload_of(
        Report("title", ours, comparison, "expert", approaches=rows, curve=[(1, 0.1, 0.2)], happenings=ran)
    )
    assert [row["chosen"] for row in full["approaches"]] == [False, True]
    assert all(row["fits"] for row in full["approaches"])
    assert full["search"]["curve"] == [[1, 0.1, 0.2e9]]
    assert len(full["words"]["choices"]) == sum(choice.time != 0 for choice in comparison.choices)
    assert full["words"]["choices"][0]["gain"] == comparison.choices[0].time
    spans = {key: unpacked(column).tolist() for key, column in full["real"]["spans"].items()}
    assert [full["real"]["names"][i] for i in spans["name"]] == ["forward encoder", "send encoder"]
    assert (spans["lane"], spans["start"], spans["duration"]) == ([0, 1], [10, 20], [20, 5])
