"""Costs from a table of devices: what a part computes and moves, each kernel of it as fast as the device lets it be.

A kernel takes as long as its flops or its bytes, whichever is slower, but never less than its launches. Products reach
a share of the peak that grows with their tiles of 64 x 64 outputs: t tiles keep t / (t + units) of a device busy, so
that small and thin parts are slow, as they are on hardware. `devices.yaml` has the figures and where they come from.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib import resources
from math import prod, sqrt
from typing import Any

import yaml

from ..errors import SoapstoneError, meant
from ..graph import ITEM_SIZES, Op, OperatorGraph, Step, Value
from ..rules import RULES, Family, facts_of
from .protocol import Costs, OpTimes

SIDE = 64
TILE = SIDE * SIDE
THINNEST = 8  # an LSTM cell of 4 samples takes half as long as one of 16, on an H200
SPLIT = 1024  # terms of a long sum that tiles of their own may add up
WINOGRAD = 2.0  # what 3 x 3 and 5 x 5 convolutions of stride 1 gain in float32
PRODUCTS = ("dense", "conv", "cell", "attention")

Box = list[tuple[int, int]]


@dataclass(frozen=True)
class Work:
    """One kernel of one part: local flops, bytes and tiles."""

    family: Family
    flops: float
    bytes: float
    tiles: float
    dtype: str


class AnalyticCosts(Costs):
    """Costs from the table. Raises SoapstoneError for a kind of device or an optimizer that it does not have."""

    by_signature = True

    def times(
        self, graph: OperatorGraph, index: int, extents: tuple[int, ...], device_kind: str, combines: bool
    ) -> OpTimes:
        op, device = graph.ops[index], _device(device_kind)
        step_dims, needs, values = graph.native.regions_at(index, [(0, n) for n in extents])
        pairs: list[tuple[float, float]] = []  # forward and backward of each step
        for s, step in enumerate(op.steps):
            work = _work(op, step, step_dims[s], needs[s], [values[v] for v in step.outputs])
            seconds = _seconds(work, device) if work else 0.0
            pairs.append((seconds, seconds * _backward(graph, op, step, work) if work else 0.0))
        if not (combines and op.finishes):
            return OpTimes(*_nanoseconds(pairs, device))
        before, after = pairs[: op.head + 1], pairs[op.head + 1 :]
        return OpTimes(*_nanoseconds(before, device), *_nanoseconds(after, device))

    def update(self, device_kind: str, optimizer: str) -> tuple[int, float]:
        known = _table()["updates"]
        if optimizer not in known:
            remedy = meant(optimizer, known, f"there are {', '.join(known)}")
            raise SoapstoneError(f"no costs for optimizer {optimizer!r}; {remedy}")
        device = _device(device_kind)
        return int(device["launch"]), known[optimizer] / (0.8 * float(device["bandwidth"])) * 1e9


def device_kinds() -> list[str]:
    """The kinds of device that the table has."""
    return list(_table()["devices"])


def peak_flops(kind: str, dtype: str) -> float | None:
    """The flops a second that a device of that kind has at its best; None for a kind that the table does not have."""
    device = _table()["devices"].get(kind)
    return None if device is None else float(device.get(dtype, device["float32"]))


def _nanoseconds(pairs: list[tuple[float, float]], device: dict[str, Any]) -> tuple[int, int]:
    least = int(device["launch"])
    forward, backward = sum(pair[0] for pair in pairs), sum(pair[1] for pair in pairs)
    return max(least, round(forward * 1e9)), max(least, round(backward * 1e9))


def _backward(graph: OperatorGraph, op: Op, step: Step, work: Work) -> float:
    """How many times its forward a step's backward is; half of it where a product's data have no gradient."""
    factor = float(_table()["families"][work.family]["backward"])
    first = next((graph.tensors[o.tensor] for o in op.inputs if o.value == step.inputs[0]), None)
    return factor / 2 if work.family in PRODUCTS and first is not None and not first.grad else factor


def _work(op: Op, step: Step, dims: Box, needs: list[Box], outputs: list[Box]) -> Work | None:
    """What a step does in a part; None where it only renames elements."""
    facts = facts_of(step.kind)
    if step.shape and not facts.copies:
        return None
    reads = [_size(box) * ITEM_SIZES[op.values[v].dtype] for v, box in zip(step.inputs, needs)]
    writes = [_size(box) * ITEM_SIZES[op.values[v].dtype] for v, box in zip(step.outputs, outputs)]
    share = _size(dims) / prod(dim.size for dim in step.dims)
    flops = step.flops * share
    if facts.lookup is not None and facts.lookup.rows:
        reads[0] = writes[0]
    if facts.family == "attention" and step.args.get("is_causal"):
        flops /= 2
    tiles = _tiles(facts.family, flops, outputs, op.values[step.outputs[0]])
    if facts.tiled:
        waste = _waste(op.values[step.outputs[0]], outputs[0])
        flops, tiles = flops * waste, tiles * waste
    if _is_winograd(step, op):
        flops /= WINOGRAD
    return Work(facts.family, flops, sum(reads) + sum(writes), tiles, op.values[step.outputs[0]].dtype)


def _tiles(family: Family, flops: float, outputs: list[Box], value: Value) -> float:
    """The pieces of work that can go on side by side: tiles of a product, channels of a batch norm. `value` is the
    first output; an axis of size 1 has no dim in its box."""
    if family == "batch_norm":
        samples, channels, *_ = value.factoring
        return _size(outputs[0][len(samples) : len(samples) + len(channels)])
    made = sum(map(_size, outputs))
    terms = flops / max(2 * made, 1)
    return made / TILE * (max(1, terms / SPLIT) if family in ("dense", "cell") else 1)


def _waste(value: Value, box: Box) -> float:
    """How much more whole tiles compute where a product has fewer rows or columns than one. The thinnest ones have
    kernels of their own."""
    inner = len(value.factoring[-1]) if value.factoring else 0
    columns, rows = _size(box[len(box) - inner :]), _size(box[: len(box) - inner])
    return min(max(1, SIDE / max(rows, 1)) * max(1, SIDE / max(columns, 1)), THINNEST)


def _is_winograd(step: Step, op: Op) -> bool:
    if step.kind != "conv2d" or op.values[step.outputs[0]].dtype != "float32":
        return False
    return op.values[step.inputs[1]].shape[2:] in ((3, 3), (5, 5)) and set(step.args["stride"]) == {1}


def _seconds(work: Work, device: dict[str, Any]) -> float:
    family = _table()["families"][work.family]
    own = device.get("efficiency", {})
    peak = float(device.get(work.dtype, device["float32"]))
    busy = 1.0
    if work.family in (*PRODUCTS, "batch_norm"):
        units = float(device["units"]) * sqrt(peak / float(device["float32"]))
        busy = work.tiles / (work.tiles + units)
    compute = work.flops / (peak * family["flops"] * own.get(work.family, own.get("dense", 1.0)) * busy)
    moving = work.bytes / (float(device["bandwidth"]) * family["memory"] * own.get("memory", 1.0))
    if work.family == "batch_norm":
        moving /= busy
    return float(max(compute, moving, family["launches"] * float(device["launch"]) * 1e-9))


def _size(box: Box) -> int:
    return prod(hi - lo for lo, hi in box)


def _device(kind: str) -> dict[str, Any]:
    devices: dict[str, dict[str, Any]] = _table()["devices"]
    if kind not in devices:
        raise SoapstoneError(f"no analytic costs for devices of kind {kind!r}; there are {', '.join(devices)}")
    return devices[kind]


@cache
def _table() -> dict[str, Any]:
    table: dict[str, Any] = yaml.safe_load((resources.files(__package__) / "devices.yaml").read_text(encoding="utf-8"))
    for device in table["devices"].values():
        device.update({key: float(value) for key, value in device.items() if isinstance(value, str)})
    return table


def _check_families() -> None:
    """Raise SoapstoneError unless every rule's family has costs, so that none is charged for another by oversight."""
    known = _table()["families"]
    for kind, rule in RULES.items():
        if rule.family not in known:
            raise SoapstoneError(f"no costs for {rule.family!r}, the family of {kind!r}; there are {', '.join(known)}")


_check_families()
