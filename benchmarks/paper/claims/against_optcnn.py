"""Claim 8: against OptCNN on 16 P100."""

from __future__ import annotations

from pathlib import Path

from ..approaches import jobs, speed_up
from ..claim import Claim, Ours, spread, table, times
from ..figures import COLOURS, figure, plain
from ..jobs import Job, Results
from ..scale import Scale
from ..settings import MODELS, Setting

MACHINES = ("p100_flexflow:4x4", "p100:4x4", "h100:2x8")
LINEAR = ("alexnet", "resnet-101")  # where the paper's strategies are the same
METHODS = ("data", "optcnn", "soapstone")


def wanted(scale: Scale) -> list[Job]:
    settings = [Setting(model, text) for text in MACHINES for model in MODELS]
    return [job for setting in settings for job in jobs(setting, scale.budget, METHODS)]


def over(scale: Scale, results: Results, text: str, models: tuple[str, ...]) -> list[float | None]:
    return [speed_up(results, Setting(model, text), scale.budget, "optcnn") for model in models]


def summed_up(scale: Scale, results: Results, text: str) -> str:
    others = tuple(model for model in MODELS if model not in LINEAR)
    linear = spread(over(scale, results, text, LINEAR))
    return f"`{text}`: {spread(over(scale, results, text, others))}, AlexNet and ResNet-101 {linear}"


def ours(scale: Scale, results: Results) -> Ours:
    *there, today = (summed_up(scale, results, text) for text in MACHINES)
    return Ours("; ".join(there), today)


def more(scale: Scale, results: Results) -> str:
    rows = [[f"`{text}`", *map(times, over(scale, results, text, tuple(MODELS)))] for text in MACHINES]
    return table(["Soapstone over OptCNN", *MODELS.values()], rows)


def draw(scale: Scale, results: Results, path: Path) -> None:
    with figure(path, (8, 3.2)) as drawn:
        axes = plain(drawn.subplots(), "over data parallelism, 16 P100 as FlexFlow's simulator has them")
        for i, (method, colour) in enumerate(zip(METHODS[1:], COLOURS)):
            ratios = [
                speed_up(results, Setting(model, MACHINES[0]), scale.budget, "data", method) or 0 for model in MODELS
            ]
            axes.bar([x + 0.4 * i - 0.2 for x in range(len(MODELS))], ratios, 0.4, color=colour, label=method)
        axes.set_xticks(range(len(MODELS)), list(MODELS.values()))
        axes.legend(frameon=False)


CLAIM = Claim(
    8,
    "optcnn",
    "Faster than OptCNN where ops can run side by side, the same where they cannot",
    "1.2 to 1.6x on the non-linear models on 16 P100; the same strategy for AlexNet and ResNet",
    "On `p100:4x4` the range is wider than the paper's at both ends: OptCNN sees no overlap of sums with "
    "computation and splits too much where there is some. On `p100_flexflow:4x4` sums hold computation up, as "
    "OptCNN takes it, and there is less to gain. Our search begins with OptCNN's strategy, so it is never behind.",
    wanted,
    ours,
    draw,
    more,
)
