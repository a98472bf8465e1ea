"""The task graph of random strategies, held against torch's semantics element by element, and its timeline against
the reference."""

from __future__ import annotations

from collections import Counter
from functools import cache
from itertools import pairwise, product
from math import prod

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import soapstone as ss
from soapstone import _core
from soapstone.graph import ITEM_SIZES, Op
from soapstone.simulator import BACKWARD, COMBINE, FORWARD, SYNC, TRANSFER, UPDATE, Simulation
from tests.support.bruteforce import Expected, ExpectedFlow, OpReads
from tests.support.chains import Launching, at_start, launches_of, with_hosts
from tests.support.models import CASES
from tests.support.reference import ReferenceTask, play_reference

SEEDS = 6  # random strategies a model and topology


class Odd(nn.Module):
    """What the other models lack: strided, dilated and grouped windows, slices, softmax, heads, broadcasting."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(4, 6, 3, stride=2, dilation=2, padding=(4, 3), groups=2, bias=False)
        self.scale = nn.Parameter(torch.ones(6, 1, 1))
        self.low = nn.Linear(6, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.max_pool2d(self.conv(x) * self.scale, (2, 3), stride=(1, 2), padding=1, dilation=(2, 1))
        x = torch.cat([x[:, :4], x[:, 2:], x[:, 3:4]], 1)[:, 1:7]
        x = torch.softmax(self.low(x.flatten(2).transpose(1, 2)), -1)
        x = x.view(x.shape[0], x.shape[1], 2, 4).transpose(1, 2)
        return x * x[..., 2:3]


class Detached(nn.Module):
    """One reader of the weight has no backward, and no reader of the shift has one."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.shift = nn.Parameter(torch.ones(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.linear(x) * self.linear.weight.detach().sum(0)
        return y * self.shift.detach() + self.shift.detach().sin()


OTHERS = {"odd": (Odd, (3, 4, 11, 9)), "detached": (Detached, (6, 4))}
MODELS = [*CASES, "odd"]


@cache
def captured(name: str) -> ss.OperatorGraph:
    if name in CASES:
        return ss.capture(CASES[name].workload())
    model, shape = OTHERS[name]
    return ss.capture(ss.Workload(model(), (torch.zeros(shape),), loss=torch.sum))


@cache
def op_reads(name: str) -> list[OpReads]:
    return [OpReads(op) for op in captured(name).ops]


ONE_BY_ONE = ss.Training(bucket_bytes=0)


@cache
def simulated(name: str, spec: str, seed: int) -> tuple[Simulation, Expected]:
    graph, topology = captured(name), ss.Topology.parse(spec)
    strategy = ss.baselines.random(graph, topology, seed=seed)
    return ss.simulate(graph, topology, strategy, training=ONE_BY_ONE), Expected(graph, op_reads(name), strategy)


def task_list(sim: Simulation) -> list[_core.Task]:
    return [sim.native.task(row) for row in range(len(sim.native))]


on_random_strategies = pytest.mark.parametrize(
    ("name", "spec", "seed"), list(product(MODELS, ["cpu:1x3", "p100:2x4"], range(SEEDS)))
)


# ---- what moves ----


@on_random_strategies
def test_flows_hold_the_elements_that_devices_read(name: str, spec: str, seed: int) -> None:
    sim, expected = simulated(name, spec, seed)
    flows = [sim.native.flow(i) for i in range(sim.native.num_flows)]
    found = {(f.tensor, f.part, f.device): (f.source, f.hull, f.readers) for f in flows}
    assert len(found) == len(flows)
    assert found == {
        key: (flow.source, expected.hull(key[0], flow.elements), sorted(set(flow.readers)))
        for key, flow in expected.flows.items()
    }


@on_random_strategies
def test_transfers_carry_the_bytes_that_devices_read(name: str, spec: str, seed: int) -> None:
    sim, expected = simulated(name, spec, seed)
    wanted: dict[tuple[bool, int, int, int, int], int] = {}
    for (tensor, part, device), flow in expected.flows.items():
        if device == flow.source:
            continue
        size = expected.bytes(tensor, flow.elements)
        wanted[False, tensor, part, flow.source, device] = size
        if sim.graph.tensors[tensor].grad and any(sim.graph.ops[o].backward for o, _ in flow.readers):
            wanted[True, tensor, part, device, flow.source] = size
    found: dict[tuple[bool, int, int, int, int], int] = {}
    for row, task in enumerate(task_list(sim)):
        if task.kind == TRANSFER:
            moved = sim.native.flow(task.flow)
            assert row == (moved.backward if task.backward else moved.forward)
            assert task.part == moved.part
            assert moved.tensor in [o.tensor for o in sim.graph.ops[task.op].outputs]
            source, target = task.devices
            assert (task.backward, moved.tensor, moved.part, source, target) not in found
            found[task.backward, moved.tensor, moved.part, source, target] = task.bytes
    assert found == wanted


def test_halos_move_once_each_way() -> None:
    """Two devices halve the height; each row of 5 x 6 x 8 at the cut moves to the other, and so does its gradient."""
    graph, topology = captured("cnn"), ss.Topology.parse("cpu:1x2")
    halves = {name: ss.Configuration({"height": 2}, (0, 1)) for name in ("stem", "norm", "branch")}
    whole = {op.name: ss.Configuration() for op in graph.ops}
    sim = ss.simulate(graph, topology, ss.Strategy(graph, topology, {**whole, **halves}))
    norm = graph.index("norm")
    moves = [
        (t.backward, t.part, tuple(t.devices), t.bytes) for t in task_list(sim) if t.kind == TRANSFER and t.op == norm
    ]
    row, half = 5 * 6 * 8 * 8, 5 * 6 * 4 * 8 * 8  # "side" on device 0 reads all of the other half, halo included
    assert moves == [
        (False, 0, (0, 1), row),
        (False, 1, (1, 0), half),
        (True, 0, (1, 0), row),
        (True, 1, (0, 1), half),
    ]


# ---- parameters ----


def held_tensors(graph: ss.OperatorGraph) -> list[int]:
    return [i for i, t in enumerate(graph.tensors) if t.source in ("parameter", "buffer")]


def elements_of(boxes: list[list[tuple[int, int]]], sizes: list[int]) -> list[int]:
    flat = np.arange(prod(sizes)).reshape(sizes)
    return [int(i) for box in boxes for i in flat[tuple(slice(lo, hi) for lo, hi in box)].ravel()]


@on_random_strategies
def test_pieces_are_the_elements_with_the_same_holders(name: str, spec: str, seed: int) -> None:
    sim, expected = simulated(name, spec, seed)
    for tensor in held_tensors(sim.graph):
        sizes = [n for axis in sim.graph.native.factoring(tensor) for n in axis]
        found: dict[tuple[int, ...], set[int]] = {}
        for holders, boxes in sim.native.pieces(tensor):
            elements = elements_of(boxes, sizes)
            assert len(elements) == len(set(elements))
            assert tuple(holders) not in found
            found[tuple(holders)] = set(elements)
        assert found == expected.pieces(tensor)


@on_random_strategies
def test_each_shared_piece_is_synced_once(name: str, spec: str, seed: int) -> None:
    sim, expected = simulated(name, spec, seed)
    found = Counter((tuple(t.devices), t.pieces[0][0], t.bytes) for t in task_list(sim) if t.kind == SYNC)
    wanted: Counter[tuple[tuple[int, ...], int, int]] = Counter()
    for tensor in held_tensors(sim.graph):
        for holders, elements in expected.pieces(tensor).items():
            if len(holders) > 1 and sim.graph.tensors[tensor].grad:
                wanted[holders, tensor, len(elements) * ITEM_SIZES[sim.graph.tensors[tensor].dtype]] += 1
    assert found == wanted


def runs(graph: ss.OperatorGraph, limit: int) -> dict[int, int]:
    """Parameters in the order of backward, cut where their bytes reach the limit."""
    first = {o.tensor: -i for i, op in reversed(list(enumerate(graph.ops))) for o in op.inputs}
    order = sorted((first[i], i) for i in held_tensors(graph) if graph.tensors[i].grad and i in first)
    found: dict[int, int] = {}
    run, size = 0, 0
    for _, i in order:
        if size >= limit:
            run, size = run + 1, 0
        found[i] = run
        size += prod(graph.tensors[i].shape) * ITEM_SIZES[graph.tensors[i].dtype]
    return found


@on_random_strategies
def test_buckets_join_neighbours_of_one_holder_set(name: str, spec: str, seed: int) -> None:
    sim, _ = simulated(name, spec, seed)
    singles = {task.pieces[0]: task for task in task_list(sim) if task.kind == SYNC}
    for limit in (200, 4096):
        joined = ss.simulate(sim.graph, sim.topology, sim.strategy, training=ss.Training(bucket_bytes=limit))
        buckets = [task for task in task_list(joined) if task.kind == SYNC]
        assert [piece for bucket in buckets for piece in bucket.pieces] == list(singles)
        for bucket in buckets:
            assert all(singles[piece].devices == bucket.devices for piece in bucket.pieces)
            assert bucket.bytes == sum(singles[piece].bytes for piece in bucket.pieces)
            assert bucket.bytes - singles[bucket.pieces[-1]].bytes < limit
        run_of = runs(sim.graph, limit)
        for one, other in pairwise(buckets):
            apart = run_of[one.pieces[-1][0]] != run_of[other.pieces[0][0]]
            assert one.devices != other.devices or one.bytes >= limit or apart
        assert all(len({run_of[tensor] for tensor, _ in bucket.pieces}) == 1 for bucket in buckets)


# ---- combines ----


def combined_elements(op: Op, o: int, parts: list[int], sim: Simulation, expected: Expected) -> int:
    """The numbers that a combine makes whole, from what the op computes."""
    if op.kind == "batch_norm":  # count, mean and M2 of each channel, from every part
        weight = next(i.tensor for i in op.inputs if sim.graph.tensors[i.tensor].name.endswith("weight"))
        channels = next(read.sum() for r, part, read in expected.read[weight] if (r, part) == (o, parts[0]))
        return len(parts) * 3 * int(channels)
    if op.kind in ("linear", "embedding"):  # the sum of each output element
        return len(np.unique(expected.makes[o][0][expected.points[o][parts[0]]]))
    if op.kind == "cross_entropy":  # six numbers for each sample, from every part
        return len(parts) * 6 * len(np.unique(expected.makes[o][0][expected.points[o][parts[0]]]))
    return {"loss_mean": 2, "mse_loss": 1, "sum": 1}[op.kind]  # a mean: sum and count


@on_random_strategies
def test_combines_join_the_parts_that_differ_in_combinable_dims(name: str, spec: str, seed: int) -> None:
    sim, expected = simulated(name, spec, seed)
    wanted: Counter[tuple[int, int, bool, tuple[int, ...], int]] = Counter()
    for o, op in enumerate(sim.graph.ops):
        groups: dict[tuple[int, ...], list[int]] = {}
        for part, where in enumerate(product(*map(range, expected.degrees[o]))):
            groups.setdefault(tuple(i for i, d in zip(where, op.dims) if not d.combinable), []).append(part)
        combines = any(n > 1 and d.combinable for n, d in zip(expected.degrees[o], op.dims))
        assert sim.native.groups(o) == (list(groups.values()) if combines else [])
        for group, parts in enumerate(sim.native.groups(o)):
            devices = tuple(sorted({expected.devices[o][part] for part in parts}))
            item_size = ITEM_SIZES[op.values[op.steps[op.head].outputs[0]].dtype]
            size = combined_elements(op, o, parts, sim, expected) * item_size
            for backward in (False, True) if op.backward else (False,):
                wanted[o, group, backward, devices, size] += 1
    tasks = [task for task in task_list(sim) if task.kind == COMBINE]
    assert Counter((t.op, t.part, t.backward, tuple(t.devices), t.bytes) for t in tasks) == wanted


@pytest.mark.parametrize(
    ("name", "op", "degrees", "size"),
    [
        ("mlp", "first", {"in": 2}, 6 * 11 * 8),
        ("cnn", "norm", {"sample": 3}, 3 * 3 * 6 * 8),
        ("cnn", "cross_entropy", {"class": 2}, 2 * 6 * 5 * 8),
        ("cnn", "loss_mean", {"sample": 2}, 2 * 8),
        ("lstm", "embed", {"vocab": 3}, 5 * 3 * 6 * 8),
    ],
)
def test_the_bytes_of_a_combine(name: str, op: str, degrees: dict[str, int], size: int) -> None:
    graph, topology = captured(name), ss.Topology.parse("cpu:1x3")
    devices = tuple(range(prod(degrees.values())))
    whole = {other.name: ss.Configuration() for other in graph.ops}
    sim = ss.simulate(graph, topology, ss.Strategy(graph, topology, {**whole, op: ss.Configuration(degrees, devices)}))
    combines = [task for task in task_list(sim) if task.kind == COMBINE]
    assert [(t.op, t.backward, tuple(t.devices), t.bytes) for t in combines] == [
        (graph.index(op), False, devices, size),
        (graph.index(op), True, devices, size),
    ]


# ---- what waits for what ----


class Waiting:
    """The predecessors of every task, from who reads what: inputs come before forward, forward before combine before
    finish, gradients the other way round, then syncs, then updates."""

    def __init__(self, sim: Simulation, expected: Expected) -> None:
        self.sim, self.expected = sim, expected
        self.after: list[set[int]] = [set() for _ in range(len(sim.native))]
        self.row: dict[tuple[int, bool, bool, int, int], int] = {}
        self.moves: dict[tuple[bool, int, int, int], int] = {}
        for row, task in enumerate(task_list(sim)):
            if task.kind == TRANSFER:
                moved = sim.native.flow(task.flow)
                self.moves[task.backward, moved.tensor, moved.part, moved.device] = row
            elif task.kind in (FORWARD, BACKWARD, COMBINE):
                self.row[task.kind, task.backward, task.finish, task.op, task.part] = row
        for o, op in enumerate(sim.graph.ops):
            self._wait_in_op(o, op)
        for (tensor, part, device), flow in expected.flows.items():
            self._wait_for_flow(tensor, part, device, flow)
        self._wait_for_copies()
        self._wait_for_gradients()

    def compute(self, backward: bool, o: int, part: int) -> int:
        return self.row[BACKWARD if backward else FORWARD, backward, False, o, part]

    def outer(self, backward: bool, o: int, part: int) -> int:
        """The task next to other ops: behind it an output part is whole, or it takes that part's gradient."""
        group = next((g for g, parts in enumerate(self.sim.native.groups(o)) if part in parts), -1)
        finish = self.row.get((BACKWARD if backward else FORWARD, backward, True, o, part))
        combine = self.row.get((COMBINE, backward, False, o, group))
        return next(row for row in (finish, combine, self.compute(backward, o, part)) if row is not None)

    def _wait_in_op(self, o: int, op: Op) -> None:
        devices, copies = self.expected.devices[o], self.expected.copies[o]
        directions = (False, True) if op.backward else (False,)
        for part in range(len(devices) if not self.sim.native.groups(o) else 0):
            if op.backward:
                self.after[self.compute(True, o, part)].add(self.compute(False, o, part))
        for group, parts in enumerate(self.sim.native.groups(o)):
            combine = [self.row[COMBINE, backward, False, o, group] for backward in directions]
            for part in parts:
                self.after[combine[0]].add(self.compute(False, o, part))
                if op.backward:
                    self.after[self.compute(True, o, part)].add(combine[1])
                start = part // copies * copies
                finishes = op.finishes and devices[part] not in devices[start:part]
                assert ((FORWARD, False, True, o, part) in self.row) == finishes
                assert ((BACKWARD, True, True, o, part) in self.row) == (finishes and op.backward)
                if finishes:
                    self.after[self.outer(False, o, part)].add(combine[0])
                if op.backward and finishes:
                    if self._own_gradient(o, part) or not any(self._own_gradient(o, start + i) for i in range(copies)):
                        self.after[self.outer(True, o, part)].add(self.outer(False, o, part))
                    self.after[combine[1]].add(self.outer(True, o, part))
                elif op.backward and not op.finishes:
                    self.after[combine[1]].add(combine[0])

    def _wait_for_flow(self, tensor: int, output_part: int, device: int, flow: ExpectedFlow) -> None:
        o = next(i for i, op in enumerate(self.sim.graph.ops) if tensor in [out.tensor for out in op.outputs])
        start = output_part * self.expected.copies[o]
        part = start + self.expected.devices[o][start:].index(flow.source)
        moves = flow.source != device
        arrival = self.outer(False, o, part)
        if moves:
            arrival = self.moves[False, tensor, output_part, device]
            self.after[arrival].add(self.outer(False, o, part))
        for reader in flow.readers:
            self.after[self.compute(False, *reader)].add(arrival)
        given = self._given(tensor, flow)
        if given and moves:
            self.after[self.moves[True, tensor, output_part, device]] |= given
        if given:
            self.after[self.outer(True, o, part)] |= self._gradient(tensor, output_part, device, flow)

    def _own_gradient(self, o: int, part: int) -> bool:
        """Whether somebody who reads this copy gives one back."""
        whole, device = part // self.expected.copies[o], self.expected.devices[o][part]
        outputs = [output.tensor for output in self.sim.graph.ops[o].outputs]
        return any(
            t in outputs and p == whole and flow.source == device and bool(self._given(t, flow))
            for (t, p, _), flow in self.expected.flows.items()
        )

    def _given(self, tensor: int, flow: ExpectedFlow) -> set[int]:
        graph = self.sim.graph
        back = [reader for reader in flow.readers if graph.tensors[tensor].grad and graph.ops[reader[0]].backward]
        return {self.compute(True, *reader) for reader in back}

    def _gradient(self, tensor: int, output_part: int, device: int, flow: ExpectedFlow) -> set[int]:
        """The tasks that bring it back."""
        return self._given(tensor, flow) if flow.source == device else {self.moves[True, tensor, output_part, device]}

    def _wait_for_copies(self) -> None:
        """What finishes a copy that nobody reads comes before the loss. A copy without a gradient begins backward with
        the copy whose gradient comes from the first device."""
        graph, flows = self.sim.graph, self.expected.flows
        ends = [o for o, op in enumerate(graph.ops) if not any(out.tensor in graph.readers for out in op.outputs)]
        for o, part in [(o, part) for kind, _, finish, o, part in self.row if finish and kind == FORWARD]:
            whole, device = part // self.expected.copies[o], self.expected.devices[o][part]
            idle = True
            for output in graph.ops[o].outputs:
                own = {to: flow for (t, p, to), flow in flows.items() if (t, p) == (output.tensor, whole)}
                back = {to: flow for to, flow in own.items() if self._given(output.tensor, flow)}
                idle &= device not in [flow.source for flow in own.values()]
                if back and device not in [flow.source for flow in back.values()]:
                    gradient = self._gradient(output.tensor, whole, min(back), own[min(back)])
                    self.after[self.outer(True, o, part)] |= gradient
            if idle and len(ends) == 1 and o != ends[0]:
                combined = bool(self.sim.native.groups(ends[0]))
                loss = (COMBINE if combined else FORWARD, False, False, ends[0], 0)
                self.after[self.row[loss]].add(self.outer(False, o, part))

    def _wait_for_gradients(self) -> None:
        tasks = task_list(self.sim)
        update = {task.devices[0]: row for row, task in enumerate(tasks) if task.kind == UPDATE}
        sync = {(t.pieces[0][0], tuple(t.devices)): row for row, t in enumerate(tasks) if t.kind == SYNC}
        for tensor in held_tensors(self.sim.graph):
            if not self.sim.graph.tensors[tensor].grad:
                continue
            for holders, elements in self.expected.pieces(tensor).items():
                given = {
                    self.compute(True, o, part)
                    for o, part, read in self.expected.read[tensor]
                    if self.sim.graph.ops[o].backward and read[list(elements)].any()
                }
                if len(holders) == 1:
                    self.after[update[holders[0]]] |= given
                else:
                    self.after[sync[tensor, holders]] |= given
                    for device in holders:
                        self.after[update[device]].add(sync[tensor, holders])


@on_random_strategies
def test_a_task_waits_for_what_it_needs_and_no_more(name: str, spec: str, seed: int) -> None:
    sim, expected = simulated(name, spec, seed)
    found = [sim.predecessors(row) for row in range(len(sim.tasks))]
    assert found == [sorted(rows) for rows in Waiting(sim, expected).after]


def test_an_update_waits_for_no_reader_without_backward() -> None:
    graph, topology = captured("detached"), ss.Topology.parse("cpu:1x1")
    sim = ss.simulate(graph, topology, ss.baselines.data_parallel(graph, topology))
    tasks = task_list(sim)
    (update,) = [task for task in tasks if task.kind == UPDATE]
    assert [(tasks[row].kind, tasks[row].op) for row in update.after] == [(BACKWARD, graph.index("linear"))]


def test_a_parameter_without_gradient_is_not_synced() -> None:
    graph, topology = captured("detached"), ss.Topology.parse("cpu:1x2")
    shift = next(i for i, t in enumerate(graph.tensors) if t.name == "shift")
    readers = [op.name for op in graph.ops if shift in [operand.tensor for operand in op.inputs]]
    assert len(readers) == 2
    assert not any(graph.op(name).backward for name in readers)
    places = {op.name: ss.Configuration({}, (int(op.name == readers[0]),)) for op in graph.ops}
    sim = ss.simulate(graph, topology, ss.Strategy(graph, topology, places))
    assert [task.pieces for task in task_list(sim) if task.kind == SYNC and (shift, 0) in task.pieces] == []


# ---- times ----


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("spec", [*(f"cpu:1x{n}" for n in range(1, 9)), "p100:1x4", "p100:2x4"])
def test_the_timeline_is_the_references(name: str, spec: str) -> None:
    graph = captured(name)
    for seed in range(SEEDS):
        topology = with_hosts(ss.Topology.parse(spec), seed % 4 * 1000)
        strategy = ss.baselines.random(graph, topology, seed=seed)
        training = ss.Training(Launching(seed % 3 / 2), bucket_bytes=seed * 64)
        sim = ss.simulate(graph, topology, strategy, training=training)
        tasks, launches = task_list(sim), launches_of(sim)
        times = play_reference(
            [
                ReferenceTask(task.key, tuple(task.holds), task.latency, tuple(task.after), launches[row])
                for row, task in enumerate(tasks)
            ],
            *at_start(topology),
        )
        for row, (task, time) in enumerate(zip(sim.tasks, times)):
            assert (task["ready"], task["start"], task["end"]) == (time.ready, time.start, time.end), (seed, row)
            assert tuple(start for _, start, _ in sim.resources(row)) == time.hold_starts, (seed, row)
        assert sim.makespan_ns == max(time.end for time in times)


@on_random_strategies
def test_a_task_is_ready_when_its_predecessors_end(name: str, spec: str, seed: int) -> None:
    sim, _ = simulated(name, spec, seed)
    ready, end = sim.tasks["ready"], sim.tasks["end"]
    for row in range(len(sim.tasks)):
        before = sim.predecessors(row)
        assert ready[row] == max((end[other] for other in before), default=0)
        assert end[row] > ready[row]  # so that no predecessors form a cycle


# ---- tasks and keys ----


@on_random_strategies
def test_every_part_runs_once_each_way_and_every_holder_updates(name: str, spec: str, seed: int) -> None:
    sim, expected = simulated(name, spec, seed)
    tasks = task_list(sim)
    runs = Counter((t.kind, t.op, t.part, *t.devices) for t in tasks if t.kind in (FORWARD, BACKWARD) and not t.finish)
    assert runs == Counter(
        (kind, o, part, device)
        for o, op in enumerate(sim.graph.ops)
        for kind in ((FORWARD, BACKWARD) if op.backward else (FORWARD,))
        for part, device in enumerate(expected.devices[o])
    )
    trained = [i for i in held_tensors(sim.graph) if sim.graph.tensors[i].grad]
    holders = {device for i in trained for piece in expected.pieces(i) for device in piece}
    assert [task.devices for task in tasks if task.kind == UPDATE] == [[device] for device in sorted(holders)]


@on_random_strategies
def test_keys_are_unique_sorted_and_none_of_another_ops_concern(name: str, spec: str, seed: int) -> None:
    sim, _ = simulated(name, spec, seed)
    other, _ = simulated(name, spec, (seed + 1) % SEEDS)
    assert (np.diff(sim.tasks["id"].astype(object)) > 0).all()

    def compute_ids(of: Simulation, o: int) -> list[int]:
        rows = of.tasks[np.isin(of.tasks["kind"], (FORWARD, BACKWARD)) & (of.tasks["op"] != o)]
        return [int(i) for i in rows["id"]]

    for o, op in enumerate(sim.graph.ops):
        changed = sim.strategy.replace({op.name: other.strategy[op.name]})
        assert compute_ids(ss.simulate(sim.graph, sim.topology, changed), o) == compute_ids(sim, o)
