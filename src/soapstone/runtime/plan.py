"""From a simulation to one rank's program: what it computes and what it says to whom, in the simulated order.

All ranks follow the same order, so that each message finds its receiver waiting for it and no one waits in a circle.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..simulator import BACKWARD, COMBINE, FORWARD, KINDS, SYNC, TRANSFER, Simulation


@dataclass(frozen=True, slots=True)
class Compute:
    """Run a part, or take its gradients; `finish`: the steps behind a combine."""

    row: int
    op: int
    part: int
    backward: bool
    finish: bool


@dataclass(frozen=True, slots=True)
class Combine:
    """Make the partials of a group whole; backward: the gradients of what they became."""

    row: int
    op: int
    group: int
    ranks: tuple[int, ...]
    backward: bool


@dataclass(frozen=True, slots=True)
class Send:
    row: int
    flow: int
    target: int
    backward: bool


@dataclass(frozen=True, slots=True)
class Receive:
    row: int
    flow: int
    source: int
    backward: bool


@dataclass(frozen=True, slots=True)
class Sync:
    """Sum the gradients of parameter pieces over their holders."""

    row: int
    pieces: tuple[tuple[int, int], ...]  # (parameter, piece)
    ranks: tuple[int, ...]


Instruction = Compute | Combine | Send | Receive | Sync


@dataclass(frozen=True, slots=True)
class Program:
    rank: int
    instructions: tuple[Instruction, ...]

    def __str__(self) -> str:
        return "\n".join(str(instruction) for instruction in self.instructions)


def make_program(simulation: Simulation, order: list[int], rank: int) -> Program:
    """The tasks of one rank, in the order of all."""
    instructions = [i for row in order if (i := _instruction(simulation, row, rank)) is not None]
    return Program(rank, tuple(instructions))


def groups_of(simulation: Simulation) -> list[tuple[int, ...]]:
    """Every set of ranks that meets for an all-reduce, in the same order on all ranks."""
    native = simulation.native
    meetings = {tuple(native.task(i).devices) for i in range(len(native)) if native.task(i).kind in (COMBINE, SYNC)}
    return sorted(ranks for ranks in meetings if len(ranks) > 1)


def _instruction(simulation: Simulation, row: int, rank: int) -> Instruction | None:
    task = simulation.native.task(row)
    if rank not in task.devices:
        return None
    if task.kind in (FORWARD, BACKWARD):
        return Compute(row, task.op, task.part, task.backward, task.finish)
    if task.kind == COMBINE:
        return Combine(row, task.op, task.part, tuple(task.devices), task.backward)
    if task.kind == TRANSFER:
        source, target = task.devices
        if rank == source:
            return Send(row, task.flow, target, task.backward)
        return Receive(row, task.flow, source, task.backward)
    if task.kind == SYNC:
        return Sync(row, tuple(task.pieces), tuple(task.devices))
    assert KINDS[task.kind] == "update"  # the optimizer's business
    return None
