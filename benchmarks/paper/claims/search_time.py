"""Claim 9: how long the paper's search takes by full, delta and our own simulation: one chain, the same proposals.

Full makes the task graph anew for each proposal and plays it, delta changes the graph and plays what changed; both go
to the end of the timeline. Ours stops where a bound says that the proposal will be refused.
"""

from __future__ import annotations

from pathlib import Path

from ..claim import NOT_RUN, Claim, Ours, spread, table
from ..figures import COLOURS, figure, plain
from ..jobs import Found, Job, Results
from ..scale import Scale
from ..settings import MODELS, Setting, machine, search

# The paper's table: seconds by full and by delta simulation and how much faster that is, on 4, 8, 16, 32 and 64 GPUs.
PAPER = {
    "alexnet": ((0.11, 0.40, 1.4, 5.3, 18), (0.04, 0.13, 0.48, 1.8, 5.9), (2.9, 3.0, 2.9, 3.0, 3.0)),
    "resnet-101": ((1.4, 4.5, 22, 107, 515), (0.4, 1.4, 7.3, 33, 158), (3.2, 3.2, 3.1, 3.2, 3.3)),
    "inception-v3": ((14, 66, 388, 1746, 8817), (4.1, 17, 77, 298, 1278), (3.4, 3.9, 5.0, 5.9, 6.9)),
    "rnntc": ((16, 91, 404, 1358, 4404), (7.5, 39, 170, 516, 1489), (2.2, 2.3, 2.4, 2.6, 3.0)),
    "rnnlm": ((21, 76, 327, 1102, 3406), (9.2, 31, 121, 342, 969), (2.3, 2.5, 2.7, 3.2, 3.6)),
    "nmt": ((40, 178, 998, 2698, 8982), (16, 65, 328, 701, 2190), (2.5, 2.7, 3.0, 3.8, 4.1)),
}
COUNTS = (4, 8, 16, 32, 64)
ENGINES = ("full", "delta", "resume")


def search_time(model: str, machine: str, engine: str, proposals: int) -> Found:
    """Seconds of a walk by the paper's method from a random strategy, and where it ends."""
    setting = Setting(model, machine)
    result = search(
        setting.graph, setting.topology, budget=None, proposals=proposals, method="paper",
        initial="random", memory_limit=False, engine=engine,
    )  # fmt: skip
    return {"seconds": result.seconds, "proposals": result.proposals, "makespan": result.makespan}


def counts(scale: Scale) -> tuple[int, ...]:
    return COUNTS if scale.is_whole else (4, 16)


def job(model: str, n: int, engine: str, scale: Scale) -> Job:
    arguments = {"model": model, "machine": machine("p100", n), "engine": engine, "proposals": scale.proposals}
    return Job(search_time, arguments, alone=True)


def wanted(scale: Scale) -> list[Job]:
    return [job(model, n, engine, scale) for model in MODELS for n in counts(scale) for engine in ENGINES]


def times_of(scale: Scale, results: Results, model: str, n: int) -> list[float] | None:
    """Seconds of a proposal by engine, all of which must have come to the same strategy."""
    rows = [row for engine in ENGINES if (row := results.get(job(model, n, engine, scale)))]
    assert len({row["makespan"] for row in rows}) <= 1
    return [row["seconds"] / row["proposals"] for row in rows] if len(rows) == len(ENGINES) else None


def ours(scale: Scale, results: Results) -> Ours:
    known = [times_of(scale, results, model, n) for model in MODELS for n in counts(scale)]
    found = [seconds for seconds in known if seconds]
    if not found:
        return Ours(NOT_RUN)
    delta = spread([full / delta for full, delta, _ in found], 1)
    best = spread([full / best for full, _, best in found], 1)
    return Ours(f"delta {delta} faster than full, our engine {best}; all three end in the same strategy")


def more(scale: Scale, results: Results) -> str:
    rows = []
    for model, name in MODELS.items():
        for n in counts(scale):
            at = COUNTS.index(n)
            full, delta, faster = (column[at] for column in PAPER[model])
            theirs = [f"{full:g} s", f"{delta:g} s", f"{faster:g}x"]
            found = times_of(scale, results, model, n)
            mine = [f"{1e3 * s:.2f} ms" for s in found] if found else [NOT_RUN] * 3
            ratios = [f"{found[0] / s:.1f}x" for s in found[1:]] if found else [NOT_RUN] * 2
            rows.append([f"{name}, {n}", *theirs, *mine, *ratios])
    head = ["model, GPUs", "paper: full", "delta", "full / delta", "ours, one proposal: full", "delta", "resume",
            "full / delta", "full / resume"]  # fmt: skip
    return table(head, rows)


def draw(scale: Scale, results: Results, path: Path) -> None:
    labels = [f"{MODELS[model]}\n{n}" for model in MODELS for n in counts(scale)]
    known = [times_of(scale, results, model, n) or [1.0] * 3 for model in MODELS for n in counts(scale)]
    with figure(path, (max(8, 1.1 * len(labels)), 3.6)) as drawn:
        axes = plain(drawn.subplots(), "one proposal, GPUs below the model's name", y="ms")
        for i, (engine, colour) in enumerate(zip(ENGINES, COLOURS)):
            heights = [1e3 * seconds[i] for seconds in known]
            axes.bar([x + 0.28 * (i - 1) for x in range(len(labels))], heights, 0.28, color=colour, label=engine)
        axes.set_xticks(range(len(labels)), labels, fontsize="x-small")
        axes.set_yscale("log")
        axes.legend(frameon=False)


CLAIM = Claim(
    9,
    "search_time",
    "Delta simulation makes the search faster, the more so the more devices there are",
    "delta 2.2 to 6.9x faster than full; 0.04 s (AlexNet, 4 GPUs) to 2,190 s (NMT, 64)",
    "The paper's times are of whole searches, whose number of proposals it does not give; ours are of a "
    "proposal, in the mean over the first 200 (2,000 in the whole version) of one chain from a random "
    "strategy. Our delta gains less on more devices, the other way round than in the paper: what a change "
    "touches, which is made anew, is then a larger part of the graph.",
    wanted,
    ours,
    draw,
    more,
)
