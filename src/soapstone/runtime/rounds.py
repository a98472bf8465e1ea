"""Cut the messages of the one order into rounds, which each rank sends and receives as one group.

NCCL takes the messages of a group together. So no message of a round may wait, by any path through any rank, for
another one of that round. A rank's later work waits for its earlier: as soon as a rank that has a message in the round
computes or sums, it is *past* the round, and so is every rank that it sums with. The first message of a rank that is
past it begins the next round. Two things follow. Between its messages of a round a rank does nothing else, so none of
them is held back for another; and each all-reduce comes before a round or after it on all of its ranks alike.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..simulator import TRANSFER
from .ordering import Order
from .placement import Placement


def cut_rounds(order: Order, placement: Placement, segment_devices: Sequence[int]) -> dict[int, int]:
    """The round of each message, by its row; `segment_devices` has the device of each segment."""
    rounds: dict[int, int] = {}
    number = 0
    talking: set[int] = set()  # devices with a message in this round
    past: set[int] = set()
    flows: set[tuple[int, int]] = set()
    for what, index, microbatch in order:
        if what in ("forward", "backward"):
            past |= talking & {segment_devices[index]}
            continue
        task = None if what == "loss" else placement.native.task(index)
        if task is not None and task.kind != TRANSFER:
            past |= set(task.devices) if past.union(talking).intersection(task.devices) else set()
            continue
        # All ranks hear of the loss. The gradient of a flow that nothing on its device needs waits for the flow alone.
        if task is None or past.intersection(task.devices) or (task.flow, microbatch) in flows:
            number, talking, past, flows = number + 1, set(), set(), set()
        if task is not None:
            rounds[index] = number
            talking.update(task.devices)
            flows.add((task.flow, microbatch))
    return rounds
