"""A strategy in sentences."""

from __future__ import annotations

from ..graph import Op, scaled
from ..simulator import Simulation
from ..strategy import Configuration
from ..topology import Topology
from .choices import Choice, Comparison

_PLURALS = {
    "sample": "samples", "channel": "channels", "head": "heads", "hidden": "hidden units", "vocab": "words",
    "class": "classes", "height": "rows", "width": "columns", "length": "positions", "in": "inputs",
}  # fmt: skip
_NEGLIGIBLE = 0.001  # of what is moved


def sentence(choice: Choice, comparison: Comparison) -> str:
    """What a choice is and what it is worth: "head: channels split over 4 devices; saves 131 MB of gradient sums, costs
    8 MB of activations: 61 ms sooner"."""
    return f"{titled(choice)}: {traffic(choice, comparison)}: {sooner(choice.time)}"


def traffic(choice: Choice, comparison: Comparison) -> str:
    """How its ops are placed, and what that saves and costs."""
    op = comparison.ours.graph.ops[choice.ops[0]]
    least = _NEGLIGIBLE * max(comparison.ours.bytes_moved, comparison.theirs.bytes_moved)
    gathers = comparison.ours.moved["gather"] or comparison.theirs.moved["gather"]
    sums = "gradient sums and weights" if gathers else "gradient sums"
    moved = [
        f"{'saves' if size > 0 else 'costs'} {scaled(abs(size), 'B')} of {what}"
        for size, what in ((choice.gradients, sums), (choice.activations, "activations"))
        if abs(size) > least
    ]
    if abs(choice.memory) > _NEGLIGIBLE * max(comparison.theirs.peak_memory) and choice.ours.keeps_less:
        moved.append(f"{'saves' if choice.memory > 0 else 'costs'} {scaled(abs(choice.memory), 'B')} of memory")
    how = placed(choice.ours, op, comparison.ours.topology)
    return f"{how}; {', '.join(moved) or 'moves about as much'}"


def sooner(ns: int) -> str:
    return "no sooner" if ns == 0 else f"{lasting(abs(ns))} {'sooner' if ns > 0 else 'later'}"


def telling(comparison: Comparison) -> list[Choice]:
    """The choices that change the time."""
    return [choice for choice in comparison.choices if choice.time]


def closing(comparison: Comparison) -> list[str]:
    """What there is to say after the choices that change the time: how many more there are, and what all are worth."""
    if not comparison.choices:
        return []
    listed = telling(comparison)
    more = "more " if listed else ""
    idle = len(comparison.choices) - len(listed)
    together = comparison.theirs.makespan_ns - comparison.ours.makespan_ns
    return [
        *([f"{idle} {more}{'choice changes' if idle == 1 else 'choices change'} nothing."] if idle else []),
        *(
            [f"{comparison.others} lesser {'choice is' if comparison.others == 1 else 'choices are'} left out."]
            if comparison.others
            else []
        ),
        f"All together: {sooner(together)}.",
    ]


def lasting(ns: float) -> str:
    """A time for a person."""
    for size, unit in ((1e9, "s"), (1e6, "ms"), (1e3, "us")):
        if ns >= 0.9995 * size:
            return f"{ns / size:.3g} {unit}"
    return f"{ns:.0f} ns"


def titled(choice: Choice) -> str:
    return choice.title if len(choice.ops) == 1 else f"{choice.title} ({len(choice.ops)} ops)"


def placed(configuration: Configuration, op: Op, topology: Topology) -> str:
    """How one op is split and where it runs, and what is kept of it."""
    return ", ".join([_split(configuration, op, topology), *kept(configuration)])


def kept(configuration: Configuration) -> list[str]:
    """What devices do not keep all of."""
    found = {"none": [], "optimizer": ["optimizer state sharded"], "all": ["weights sharded"]}[configuration.shard]
    return [*found, "recomputed"] if configuration.recompute else found


def _split(configuration: Configuration, op: Op, topology: Topology) -> str:
    used = len(set(configuration.devices))
    if not configuration.degrees:
        return f"whole on {topology.devices[configuration.devices[0]].name}"
    split = [(_plural(name), degree) for name, degree in _in_order(configuration, op)]
    where = f"{used} devices" if used > 1 else topology.devices[configuration.devices[0]].name
    if len(split) == 1 and split[0][1] == used:
        return f"{split[0][0]} split over {where}"
    return f"{' and '.join(f'{what} split in {degree}' for what, degree in split)}, on {where}"


def _in_order(configuration: Configuration, op: Op) -> list[tuple[str, int]]:
    return [(dim.name, configuration.degrees[dim.name]) for dim in op.dims if dim.name in configuration.degrees]


def _plural(dim: str) -> str:
    stem = dim.rstrip("0123456789").rstrip("_")
    return _PLURALS.get(stem, dim)


def summary(comparison: Comparison, other: str = "data parallelism") -> list[str]:
    """The whole in a few sentences."""
    ours, theirs = comparison.ours, comparison.theirs
    if not comparison.choices:
        return [f"This is {other}: a step takes {lasting(ours.makespan_ns)}."]
    return [
        _speed(comparison, other),
        _traffic(comparison),
        *_compute(comparison),
        f"It uses {len(ours.strategy.devices)} of {ours.topology.num_devices} devices; the fullest holds "
        f"{scaled(max(ours.peak_memory), 'B')} instead of {scaled(max(theirs.peak_memory), 'B')}.",
    ]


def _speed(comparison: Comparison, other: str) -> str:
    ours, theirs = comparison.ours.makespan_ns, comparison.theirs.makespan_ns
    if ours == theirs:
        return f"A step takes {lasting(ours)}, as under {other}."
    how = f"{theirs / ours:.2f} times as fast" if theirs > ours else f"{ours / theirs:.2f} times as long"
    return f"A step takes {lasting(ours)}; under {other} it takes {lasting(theirs)}: {how}."


def _traffic(comparison: Comparison) -> str:
    ours, theirs = comparison.ours, comparison.theirs
    return f"It moves {_moved('gradient sums', ours, theirs)}, and {_moved('activations', ours, theirs)}." + (
        f" It gathers {_moved('weights', ours, theirs)}." if ours.moved["gather"] or theirs.moved["gather"] else ""
    )


def _moved(what: str, ours: Simulation, theirs: Simulation) -> str:
    kinds = {"gradient sums": ("sync",), "activations": ("transfer", "combine"), "weights": ("gather",)}[what]
    mine, its = (scaled(sum(sim.moved[kind] for kind in kinds), "B") for sim in (ours, theirs))
    return f"{mine} of {what} instead of {its}"


def _compute(comparison: Comparison) -> list[str]:
    ours, theirs = (lasting(sim.compute_time * 1e9) for sim in (comparison.ours, comparison.theirs))
    if ours == theirs:
        return []
    less = comparison.ours.compute_time < 0.98 * comparison.theirs.compute_time
    why = ": larger parts, and fewer copies to update, cost less" if less else ""
    return [f"All devices together compute for {ours} instead of {theirs}{why}."]
