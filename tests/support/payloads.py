"""Payloads of the report's page, made up: a transformer, a network with branches, and one of 100,000 tasks."""

from __future__ import annotations

import base64
import gzip
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

Payload = dict[str, Any]
KINDS = ["forward", "backward", "combine", "transfer", "sync", "update"]
_TYPES = {"u8": "<u1", "u16": "<u2", "u32": "<u4", "i32": "<i4", "f64": "<f8"}


def column(kind: str, values: Any) -> Payload:
    """One column as the page reads it."""
    data = np.asarray(values).astype(_TYPES[kind])
    packed = gzip.compress(data.tobytes(), 6, mtime=0)
    return {"type": kind, "length": int(data.size), "data": base64.b64encode(packed).decode()}


@dataclass
class Model:
    """Layers of one op or more each, and the tensors between ops."""

    ops: list[Payload] = field(default_factory=list)
    edges: list[list[float]] = field(default_factory=list)
    layers: list[Payload] = field(default_factory=list)
    folds: list[Payload] = field(default_factory=list)

    def layer(
        self,
        name: str,
        kind: str,
        after: Sequence[int],
        degrees: dict[str, int],
        devices: Sequence[Sequence[int]],
        *,
        sizes: tuple[int, int, int] = (64, 128, 1024),
        weights: float = 4e6,
        flops: float = 2e10,
        fold: int | None = None,
    ) -> int:
        """Add a layer after others, with an op for each list of devices; return its index."""
        index, first = len(self.layers), len(self.ops)
        names = {"sample": "sample", "length": "attribute", "hidden": "parameter"}
        dims = [{"name": n, "size": s, "kind": k} for (n, k), s in zip(names.items(), sizes)]
        output = "x".join(map(str, sizes))
        for step, places in enumerate(devices):
            label = name if len(devices) == 1 else f"{name}@{step}"
            op = {"name": label, "type": kind, "layer": index, "dims": dims, "degrees": degrees, "devices": places}
            self.ops.append({**op, "flops": flops, "weights": weights, "output": output})
            if step:
                self.edges.append([first + step - 1, first + step, 4e6])
        for before in after:
            sources = self.layers[before]["ops"]
            for step in range(len(devices)):
                self.edges.append([sources[min(step, len(sources) - 1)], first + step, 4e6])
        ops = list(range(first, len(self.ops)))
        self.layers.append({"name": name, "ops": ops, "count": len(ops), "fold": fold})
        return index


@dataclass
class Played:
    """Tasks in the order in which they are started, each as soon as it may."""

    lanes: list[Payload]
    tasks: list[tuple[int, int, int, float, float, float, float]] = field(default_factory=list)
    after: list[list[int]] = field(default_factory=list)
    holds: list[tuple[int, int, float, float]] = field(default_factory=list)
    free: dict[int, float] = field(default_factory=dict)

    def add(
        self, kind: str, op: int, part: int, size: float, lanes: Sequence[int], took: float, after: list[int]
    ) -> int:
        """Add a task; return its index."""
        ready = max((self.tasks[t][6] for t in after), default=0.0)
        start = max([ready, *(self.free.get(lane, 0.0) for lane in lanes)])
        index = len(self.tasks)
        self.tasks.append((KINDS.index(kind), op, part, size, ready, start, start + took))
        self.after.append(after)
        for lane in lanes:
            self.free[lane] = start + took
            self.holds.append((index, lane, start, took))
        return index

    def critical(self) -> list[int]:
        """From the last task back along what each waited for last."""
        found = [max(range(len(self.tasks)), key=lambda t: self.tasks[t][6])]
        while self.after[found[-1]]:
            found.append(max(self.after[found[-1]], key=lambda t: self.tasks[t][6]))
        return found[::-1]

    def timeline(self) -> Payload:
        """The payload's `timeline`."""
        columns = list(zip(*self.tasks))
        names = {"kind": "u8", "op": "i32", "part": "i32", "bytes": "f64", "ready": "f64", "start": "f64", "end": "f64"}
        begin = np.cumsum([0, *map(len, self.after)])
        held = list(zip(*self.holds))
        return {
            "makespan": max(columns[6]),
            "kinds": KINDS,
            "lanes": self.lanes,
            "tasks": {name: column(kind, columns[i]) for i, (name, kind) in enumerate(names.items())},
            "after": {"begin": column("u32", begin), "task": column("u32", [t for ts in self.after for t in ts])},
            "holds": {
                "task": column("u32", held[0]),
                "lane": column("u16", held[1]),
                "start": column("f64", held[2]),
                "duration": column("f64", held[3]),
            },
            "critical": column("u32", self.critical()),
        }


def cluster(nodes: int, each: int) -> tuple[list[Payload], Payload, list[Payload], dict[tuple[int, int], list[int]]]:
    """Devices, the cluster, the timeline's lanes, and the lanes that a message from one device to another holds."""
    devices = [
        {"name": f"gpu{i}", "kind": "P100", "node": i // each, "memory": 17179869184} for i in range(nodes * each)
    ]
    vertices: list[Payload] = [{"name": d["name"], "device": i, "node": d["node"]} for i, d in enumerate(devices)]
    vertices += [{"name": f"host{n}", "device": None, "node": None} for n in range(nodes)]
    vertices.append({"name": "network", "device": None, "node": None})
    links: list[Payload] = []
    lanes: list[Payload] = [{"name": d["name"], "kind": "device"} for d in devices]
    place: dict[tuple[int, int], int] = {}

    def link(source: int, target: int, bandwidth: float) -> None:
        busy = [round((source * 7 + target * 3) % 10 / 12, 2), round((source + target * 5) % 10 / 14, 2)]
        links.append({"source": source, "target": target, "bandwidth": bandwidth, "duplex": True, "busy": busy})
        for a, b in ((source, target), (target, source)):
            place[a, b] = len(lanes)
            lanes.append({"name": f"{vertices[a]['name']} to {vertices[b]['name']}", "kind": "link"})

    for node in range(nodes):
        mine = range(node * each, (node + 1) * each)
        for a in mine:
            for b in range(a + 1, (node + 1) * each):
                link(a, b, 18.31e9)
        for a in mine:
            link(a, len(devices) + node, 11.7e9)
        link(len(devices) + node, len(devices) + nodes, 12.5e9)
    lanes += [{"name": f"host{n}", "kind": "host"} for n in range(nodes)]
    routes = {}
    for a in range(len(devices)):
        for b in range(len(devices)):
            m, n = len(devices) + a // each, len(devices) + b // each
            road = [(a, b)] if m == n else [(a, m), (m, len(vertices) - 1), (len(vertices) - 1, n), (n, b)]
            routes[a, b] = [place[step] for step in road if a != b]
    return devices, {"vertices": vertices, "links": links}, lanes, routes


def play(model: Model, lanes: list[Payload], routes: dict[tuple[int, int], list[int]]) -> Payload:
    """A plausible timeline of one iteration."""
    played = Played(lanes)
    before: dict[int, list[int]] = {i: [] for i in range(len(model.ops))}
    for source, target, _ in model.edges:
        before[int(target)].append(int(source))
    done: dict[tuple[str, int, int], int] = {}

    def run(kind: str, op: int, sources: list[int]) -> None:
        places, factor = model.ops[op]["devices"], 1.0 if kind == "forward" else 2.0
        for part, device in enumerate(places):
            waits = [done["forward", op, part]] if kind == "backward" else []
            for source in sources:
                others = model.ops[source]["devices"]
                other = part * len(others) // len(places)
                made = done[kind, source, other]
                if others[other] != device:
                    lanes = routes[others[other], device]
                    made = played.add("transfer", source, other, 4e6 / len(places), lanes, 2e5, [made])
                waits.append(made)
            took = factor * model.ops[op]["flops"] / 9e3 / len(places) * (1 + op % 3 / 4)
            done[kind, op, part] = played.add(kind, op, part, 0, [device], took, waits)

    for op in range(len(model.ops)):
        run("forward", op, before[op])
    following: dict[int, list[int]] = {i: [] for i in range(len(model.ops))}
    for source, target, _ in model.edges:
        following[int(source)].append(int(target))
    for op in reversed(range(len(model.ops))):
        run("backward", op, following[op])
        places = model.ops[op]["devices"]
        made = [done["backward", op, part] for part in range(len(places))]
        synced = made
        if len(set(places)) > 1 and model.ops[op]["weights"]:
            road = [lane for a, b in zip(places, places[1:] + places[:1]) for lane in routes[a, b]]
            took = model.ops[op]["weights"] / 12
            synced = [played.add("sync", op, -1, model.ops[op]["weights"], sorted(set(road)), took, made)]
        for part, device in enumerate(places):
            played.add("update", op, part, 0, [device], 3e4, synced)
    return played.timeline()


def whole(title: str, model: Model, nodes: int, each: int, folded: bool = True) -> Payload:
    """Everything else that a payload holds, round a model."""
    devices, picture, lanes, routes = cluster(nodes, each)
    timeline = play(model, lanes, routes)
    span, count = timeline["makespan"], len(devices)
    share = np.linspace(0.5, 0.7, count)
    names = ["parameters", "gradients", "states", "saved", "made", "buckets", "transient"]
    memory = {name: [2e8 * (8 - i) * (1 + d % 4 / 8) for d in range(count)] for i, name in enumerate(names)}
    peak = [sum(memory[name][d] for name in names) for d in range(count)]
    seconds = np.geomspace(0.02, 30, 60)
    curve = [[int(s * 900), float(s), float(span * (1 + 1.33 * np.exp(-s)))] for s in seconds]
    rows = [("data", 2.33, 3.24e9), ("expert", 1.6, 8.6e7), ("paper", 1.2, 2.45e9), ("soapstone", 1.0, 8.63e8)]
    return {
        "format": 1,
        "title": title,
        "version": "0.2.0",
        "setting": [["model", title.split()[0]], ["batch", "64"], ["dtype", "float32"], ["optimizer", "adam"]],
        "headline": {
            "makespan": span,
            "data_parallel": span * 2.33,
            "strategy": "searched",
            "figures": [["samples a second", "1,240"], ["bytes moved", "863 MB"], ["peak memory", "2.03 GB"]],
        },
        "devices": devices,
        "cluster": picture,
        "ops": model.ops,
        "edges": model.edges,
        "layers": model.layers,
        "folds": model.folds if folded else [],
        "timeline": timeline,
        "real": None,
        "time": {
            "compute": list(span * share),
            "communication": list(span * (0.8 - share) / 2),
            "waiting": list(span * (0.8 - share) / 2),
            "idle": [span * 0.2] * count,
        },
        "memory": {**memory, "peak": peak, "bound": [p * 1.1 for p in peak]},
        "search": {"curve": curve, "data_parallel": span * 2.33, "method": "soapstone"},
        "approaches": [
            {
                "name": name,
                "makespan": span * factor,
                "speed_up": 2.33 / factor,
                "bytes_moved": moved,
                "compute_ns": span * 3,
                "exposed_ns": span * factor / 9,
                "peak_memory": 2e9 * factor,
                "search_seconds": 10.0 if name in ("paper", "soapstone") else None,
                "fits": name != "data",
                "chosen": name == "soapstone",
            }
            for name, factor, moved in rows
        ],
        "words": {
            "summary": [
                "The searched strategy takes less than half the time of data parallelism.",
                "It moves a quarter of the bytes, because large layers are split by their parameters.",
            ],
            "closing": ["3 more choices change nothing.", "All together: 61 ms sooner."],
            "choices": [
                {
                    "layers": [len(model.layers) - 1],
                    "title": model.layers[-1]["name"],
                    "sentence": "Split by parameter over 4 devices: its gradients never leave their device.",
                    "gain": span * 0.4,
                },
                {
                    "layers": [0],
                    "title": model.layers[0]["name"],
                    "sentence": "Kept on one device, which saves a sync that everybody would wait for.",
                    "gain": span * 0.07,
                },
            ],
        },
    }


def transformer(blocks: int = 12) -> Payload:
    """Like a small GPT: an embedding, blocks that are alike, and a head that is split by its parameters."""
    model, four = Model(), [[0, 1, 2, 3]]
    at = model.layer("embedding", "embedding", [], {}, [[0]], weights=2e8, flops=1e9)
    members: list[list[int]] = []
    model.folds.append({"name": "layers.*", "count": blocks, "members": members})
    samples = {"sample": 4}
    for block in range(blocks):
        name, first = f"layers.{block}", len(model.layers)

        def add(
            part: str, kind: str, after: list[int], degrees: dict[str, int], weights: float = 0.0, at: str = name
        ) -> int:
            return model.layer(f"{at}.{part}", kind, after, degrees, four, weights=weights, fold=0)

        norm = add("norm1", "layer_norm", [at], samples)
        qkv = add("attention.qkv", "linear", [norm], {"sample": 2, "hidden": 2}, 1.2e7)
        mix = add("attention.mix", "attention", [qkv], {"sample": 2, "hidden": 2})
        out = add("attention.out", "linear", [mix, at], samples, 4e6)
        wide = add("mlp.up", "linear", [out], {"hidden": 4}, 1.6e7)
        at = add("mlp.down", "linear", [wide, out], samples, 1.6e7)
        members.append(list(range(first, len(model.layers))))
    at = model.layer("norm", "layer_norm", [at], samples, four, weights=0)
    at = model.layer("head", "linear", [at], {"hidden": 4}, four, weights=2e8, flops=6e10)
    model.layer("loss", "cross_entropy", [at], {"sample": 2}, [[0, 1]], weights=0, flops=1e9)
    return whole("transformer on p100:1x4", model, 1, 4)


def branches(nodes: int = 2) -> Payload:
    """Like Inception: modules of four branches each; and an LSTM of ten steps whose steps wander over the devices."""
    model, count = Model(), 4 * nodes
    everywhere = [list(range(count))]
    at = model.layer("stem.conv", "conv2d", [], {"sample": count}, everywhere, flops=6e10)
    for module in range(2):
        tails = []
        for branch, kinds in enumerate((["1x1"], ["1x1", "3x3"], ["1x1", "3x3", "3x3b"], ["pool", "proj"])):
            tail, half = at, list(range(branch % 2 * 4, branch % 2 * 4 + 4))
            for kind in kinds:
                name = f"mixed{module}.branch{branch}.{kind}"
                tail = model.layer(name, "conv2d", [tail], {"sample": 2, "hidden": 2}, [half])
            tails.append(tail)
        at = model.layer(f"mixed{module}.concat", "cat", tails, {"sample": count}, everywhere, weights=0, flops=1e8)
    steps = [[step // 3 % count, (step // 3 + 1) % count] for step in range(10)]
    at = model.layer("caption.lstm", "lstm_cell", [at], {"hidden": 2}, steps, weights=8e6)
    at = model.layer("classify", "linear", [at], {"sample": 2, "hidden": count // 2}, everywhere, weights=8e7)
    model.layer("loss", "cross_entropy", [at], {"sample": 1}, [[0]], weights=0, flops=1e8)
    payload = whole("captions on p100:2x4", model, nodes, 4)
    timeline = payload["timeline"]
    lanes = [{"name": f"rank {i}", "lane": i} for i in range(count)]
    starts = np.arange(40) / 40 * timeline["makespan"] * 1.1
    payload["real"] = {
        "makespan": timeline["makespan"] * 1.1,
        "lanes": lanes,
        "names": ["forward stem.conv", "wait", "backward classify"],
        "kinds": ["compute", "wait", "message", "sync"],
        "spans": {
            "lane": column("u16", np.repeat(np.arange(count), 40)),
            "name": column("u32", np.tile(np.arange(40) % 3, count)),
            "kind": column("u8", np.tile(np.arange(40) % 3 % 2, count)),
            "start": column("f64", np.tile(starts, count)),
            "duration": column("f64", np.tile(starts[1] * (0.5 + np.arange(40) % 3 / 6), count)),
            "bytes": column("f64", np.zeros(40 * count)),
        },
    }
    return payload


def large(tasks: int = 100_000, devices: int = 16, blocks: int = 166) -> Payload:
    """1,000 layers and as many tasks as asked for, each message over four or so links; 4 entries of `after` a task."""
    payload = transformer(blocks)
    payload["title"] = "large on p100:4x4"
    payload["devices"], payload["cluster"], lanes, _ = cluster(devices // 4, 4)
    rng = np.random.default_rng(0)
    messages = tasks * 4 // 10
    groups = 16
    links = [i for i, lane in enumerate(lanes) if lane["kind"] == "link"]
    wide = len(links) // groups
    held = min(4, wide)
    is_message = np.zeros(tasks, bool)
    is_message[rng.choice(tasks, messages, replace=False)] = True
    took = np.round(rng.gamma(2.0, 2e4, tasks) + 500)  # whole nanoseconds, as the simulator has them
    place = rng.integers(0, np.where(is_message, groups, devices))
    start = np.zeros(tasks)
    for flag, many in ((True, groups), (False, devices)):
        for where in range(many):
            mine = np.flatnonzero((is_message == flag) & (place == where))
            gaps = np.round(rng.gamma(1.0, 2e4 * (2 if flag else 0.3), mine.size))
            start[mine] = np.cumsum(took[mine] + gaps) - took[mine]
    order = np.argsort(start, kind="stable")
    is_message, took, place, start = is_message[order], took[order], place[order], start[order]
    kind = np.where(is_message, np.where(rng.random(tasks) < 0.7, 3, 4), rng.choice([0, 1, 1, 5], tasks))
    ends, count = start + took, np.minimum(4, np.arange(tasks))
    begin = np.concatenate([[0], np.cumsum(count)])
    owner = np.repeat(np.arange(tasks), count)
    after = np.maximum(owner - 1 - rng.integers(0, 200, owner.size), 0)
    task = np.concatenate([np.flatnonzero(~is_message), np.repeat(np.flatnonzero(is_message), held)])
    offsets = np.tile(np.arange(held), messages)
    road = np.asarray(links)[place[is_message].repeat(held) * wide + offsets]
    lane = np.concatenate([place[~is_message], road])
    mixed = rng.permutation(task.size)  # the page must not count on an order
    task, lane = task[mixed], lane[mixed]
    makespan = float(ends.max())
    part = np.where(is_message, -1, 0)
    payload["timeline"] = {
        "makespan": makespan,
        "kinds": KINDS,
        "lanes": lanes,
        "tasks": {
            "kind": column("u8", kind),
            "op": column("i32", rng.integers(0, len(payload["ops"]), tasks)),
            "part": column("i32", part),
            "bytes": column("f64", np.where(is_message, rng.integers(1, 1 << 24, tasks), 0)),
            "ready": column("f64", start - np.round(rng.gamma(1.0, 1e4, tasks)).clip(max=start)),
            "start": column("f64", start),
            "end": column("f64", ends),
        },
        "after": {"begin": column("u32", begin), "task": column("u32", after)},
        "holds": {
            "task": column("u32", task),
            "lane": column("u16", lane),
            "start": column("f64", start[task]),
            "duration": column("f64", took[task]),
        },
        "critical": column("u32", np.flatnonzero(rng.random(tasks) < 0.02)),
    }
    payload["time"] = {name: [v[0]] * devices for name, v in payload["time"].items()}
    payload["memory"] = {name: [v[0]] * devices for name, v in payload["memory"].items()}
    return payload
