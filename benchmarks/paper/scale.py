"""How much of the evaluation is run: a quick version of all of it, or the whole."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Scale:
    """Seconds of a search; devices by kind and readings of the batch, for the figures of throughput; proposals of a
    chain whose speed is measured, and of those held against one another task by task; rounds of steps that are
    timed."""

    name: str
    budget: float
    devices: dict[str, tuple[int, ...]]
    readings: tuple[str, ...]
    proposals: int
    checked: int
    rounds: int

    @property
    def is_whole(self) -> bool:
        return self.name == "whole"


QUICK = Scale("quick", 4.0, {"p100": (4, 16), "k80": (4, 64)}, ("per device",), 200, 20_000, 10)
WHOLE = Scale("whole", 30.0, {"p100": (1, 2, 4, 8, 16), "k80": (1, 2, 4, 8, 16, 32, 64)}, ("per device", "whole"),
              2000, 1_000_000, 40)  # fmt: skip
