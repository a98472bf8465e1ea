"""Claim 7: against device placement by reinforcement learning, on 4 K80."""

from __future__ import annotations

from pathlib import Path

from ..approaches import found, jobs, rate, speed_up
from ..claim import NOT_RUN, Claim, Ours, spread, table, times
from ..figures import COLOURS, figure, plain
from ..jobs import Job, Results
from ..scale import Scale
from ..settings import MODELS, Setting

MACHINES = ("k80_flexflow:1x4", "k80:1x4", "h100:1x4")
PLACED = ("inception-v3", "nmt")
METHODS = ("data", "reinforce", "paper", "soapstone")


def settings(text: str) -> list[Setting]:
    return [Setting(model, text) for model in PLACED]


def wanted(scale: Scale) -> list[Job]:
    return [job for text in MACHINES for setting in settings(text) for job in jobs(setting, scale.budget, METHODS)]


def over(scale: Scale, results: Results, text: str) -> str:
    ratios = [speed_up(results, setting, scale.budget, "reinforce") for setting in settings(text)]
    return f"`{text}`: {spread(ratios, 1)}"


def ours(scale: Scale, results: Results) -> Ours:
    *there, today = (over(scale, results, text) for text in MACHINES)
    return Ours("; ".join(there) + f", each method with {scale.budget:.0f} s", today)


def more(scale: Scale, results: Results) -> str:
    lines = []
    for text in MACHINES:
        for setting in settings(text):
            row = found(results, setting, "soapstone", scale.budget)
            ratios = [speed_up(results, setting, scale.budget, method) for method in METHODS[:-1]]
            took = f"{row['seconds']:.0f} s" if row else NOT_RUN
            lines.append([f"{MODELS[setting.model]}, `{text}`", *map(times, ratios), took])
    return table(["Soapstone over", "data parallelism", "REINFORCE", "the paper's MCMC", "search"], lines)


def draw(scale: Scale, results: Results, path: Path) -> None:
    with figure(path, (8, 3.2)) as drawn:
        for axes, setting in zip(drawn.subplots(1, 2), settings(MACHINES[0])):
            rates = [rate(results, setting, method, scale.budget) or 0.0 for method in METHODS]
            plain(axes, f"{MODELS[setting.model]}, {setting.machine}", y="samples a second and device")
            axes.bar(METHODS, rates, color=COLOURS[: len(METHODS)])


CLAIM = Claim(
    7,
    "placement",
    "Faster than REINFORCE's placements on 4 K80, found in seconds",
    "3.4 to 3.8x (Inception-v3, NMT), in 14 to 40 s instead of 12 to 27 h",
    "The paper compares with the placements that Mirhoseini et al. published after 12 to 27 h on real "
    "machines; ours are learned here, in the seconds that the search has, with the simulator that judges "
    "both.",
    wanted,
    ours,
    draw,
    more,
)
