"""Checks that every batch norm has more than one value per channel: one value has no variance, and torch refuses it."""

from __future__ import annotations

from math import prod

from ..errors import RankError
from ..graph import OperatorGraph
from ..parts import Box, Part
from ..simulator import Simulation


def check_statistics(simulation: Simulation) -> None:
    """Raise RankError if a batch norm in training has one value per channel, in a part or in a microbatch."""
    graph = simulation.played
    for number, (degrees, devices, *_) in enumerate(simulation.strategy.native):
        for index, step in enumerate(graph.ops[number].steps):
            if step.kind == "local_batch_norm":
                parts = [_dims(graph, number, degrees, part, index) for part in range(len(devices))]
            elif step.kind == "_native_batch_norm_legit_functional":
                parts = [[(0, dim.size) for dim in step.dims]]
            else:
                continue
            if any(_num_values([dim.name for dim in step.dims], dims) == 1 for dims in parts):
                raise RankError(
                    f"op {graph.ops[number].name!r} has a batch norm that would get one value per channel, which "
                    "has no variance; cut the batch into fewer parts or microbatches"
                )


def _dims(graph: OperatorGraph, op: int, degrees: list[int], part: int, step: int) -> Box:
    return list(Part(graph, op, degrees, part).step_dims[step])


def _num_values(names: list[str], dims: Box) -> int:
    return prod(hi - lo for name, (lo, hi) in zip(names, dims) if name != "channel")
