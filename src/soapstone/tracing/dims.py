"""An op's own dims: which may be split, which combine, and their kinds.

Each of the op's dims is followed back from the exit through the steps: it drives a step's dim where that dim's
interval moves with it alone and disjoint parts stay disjoint. A dim may be split where no step needs it whole and
every computing step is driven by it, so that no two parts compute the same.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ..graph import Dim, Factor, Value
from .refine import Draft

Driver = tuple[int, int]  # (step, step dim) of one of the op's dims
Place = tuple[int, int]  # (step, dim), or (value, dim)


@dataclass
class Drivers:
    """What alone moves each dim of the steps and of the values; None where nothing or several do."""

    steps: dict[Place, Driver | None] = field(default_factory=dict)
    values: dict[Place, Driver | None] = field(default_factory=dict)


def dims_of(steps: list[Draft], values: list[Value], head: int, last: int, parameters: list[int]) -> tuple[Dim, ...]:
    """The dims of the last step's outputs, then the head's combinable ones; `parameters` are values."""
    drivers = _follow(steps, values, head, last)
    own = [(last, d) for d in dict.fromkeys(d for write in steps[last].writes for axis in write for d in axis)]
    own += [(head, d) for d in steps[head].extras]
    splitting = {drivers.values.get((v, i)) for v in parameters for i in range(sum(map(len, values[v].factoring)))}
    combine = steps[head].combine
    combined = {drivers.steps[head, d] for d in combine.over} if combine else set()
    result = []
    for s, d in own:
        dim, extra = steps[s].dims[d], (s, d) not in own[: len(own) - len(steps[head].extras)]
        summed = extra and not ((s, d) in splitting and _has_one_reader(steps[s], d))
        kind = "reduction" if summed else "parameter" if (s, d) in splitting else "attribute"
        splittable = dim.size > 1 and not dim.whole and (extra or _splittable(steps, drivers, (s, d)))
        result.append(Dim(dim.name, dim.size, kind, splittable, (s, d) in combined, extra, s, d))
    return tuple(result)


def _has_one_reader(step: Draft, d: int) -> bool:
    """Whether it is a dim of one input alone, such as the rows of a table, or the experts."""
    return sum(any(f.dim == d for axis in read for f in axis) for read in step.reads) == 1


def _follow(steps: list[Draft], values: list[Value], head: int, last: int) -> Drivers:
    drivers = Drivers()
    for s in reversed(range(len(steps))):
        step = steps[s]
        written = {d for write in step.writes for axis in write for d in axis}
        asked: dict[int, set[Driver | None]] = {}
        for number, value in enumerate(step.outputs):
            for place, d in enumerate(d for axis in step.writes[number] for d in axis):
                if (value, place) in drivers.values:
                    asked.setdefault(d, set()).add(drivers.values[value, place])
        for d in range(len(step.dims)):
            own = (s == last and d in written) or (s == head and d in step.extras)
            found = asked.get(d, set())
            drivers.steps[s, d] = (s, d) if own else found.pop() if len(found) == 1 else None
        for number, value in enumerate(step.inputs):
            _pass_back(drivers, s, step.reads[number], value, values[value])
    return drivers


def _pass_back(drivers: Drivers, s: int, read: list[list[Factor]], value: int, described: Value) -> None:
    place = 0
    for axis, sizes in zip(read, described.factoring):
        same = tuple(f.size for f in axis) == sizes
        for k in range(len(sizes)):
            driver = drivers.steps[s, axis[k].dim] if same and _disjoint(axis[k]) else None
            known = drivers.values.get((value, place), driver)
            drivers.values[value, place] = driver if known == driver else None
            place += 1


def _disjoint(f: Factor) -> bool:
    """Whether disjoint intervals stay disjoint."""
    return f.dim >= 0 and f.lower[0] == f.upper[0] > 0 and f.lower[2] == f.upper[2] == 1 and f.upper[1] <= f.lower[1]


def _splittable(steps: list[Draft], drivers: Drivers, driver: Driver) -> bool:
    for s, step in enumerate(steps):
        driven = [d for d in range(len(step.dims)) if drivers.steps[s, d] == driver]
        if any(step.dims[d].whole for d in driven):
            return False
        if not driven and not step.source.rule.shape:
            return False
    return True
