"""Claim 4: predictions against real runs, from the rows that `python -m benchmarks.reality` has written."""

from __future__ import annotations

from pathlib import Path

from benchmarks.accuracy import Row, read, summary

from ..claim import NOT_RUN, Claim, Ours
from ..figures import COLOURS, figure, plain
from ..jobs import Results
from ..scale import Scale

FOLDER = Path(__file__).parents[2] / "data" / "reality"
RUNS = {
    "cuda-2": "2 NCCL ranks on an H200",
    "cuda-4": "4 NCCL ranks on an H200",
    "cpu-2": "2 gloo ranks",
    "cpu-4": "4 gloo ranks",
    "cpu-8": "8 gloo ranks",
}

CLAIMED = 0.3


def rows(name: str) -> dict[str, list[Row]]:
    return {model: [Row(**row) for row in found] for model, found in read(FOLDER / f"{name}.json").items()}


def ours(_: Scale, __: Results) -> Ours:
    summaries = []
    for name, where in RUNS.items():
        errors = [abs(row.error) for found in rows(name).values() for row in found]
        within = sum(error <= CLAIMED for error in errors)
        summaries.append(f"{where}: {within} of {len(errors)} within 30%. {summary(rows(name))}" if errors else NOT_RUN)
    return Ours("no P100 or K80 was at hand", " ".join(summaries))


def draw(_: Scale, __: Results, path: Path) -> None:
    with figure(path, (15, 4)) as drawn:
        for axes, (name, where) in zip(drawn.subplots(1, len(RUNS)), RUNS.items()):
            plain(axes, where, "measured, ms", "predicted, ms")
            for (model, found), colour in zip(rows(name).items(), COLOURS):
                axes.plot([1e3 * row.measured for row in found], [1e3 * row.predicted for row in found], "o",
                          color=colour, label=model)  # fmt: skip
            line = [1.0, 1e4]
            axes.plot(line, line, color="grey", linewidth=1)
            axes.fill_between(line, [0.7 * x for x in line], [1.3 * x for x in line], alpha=0.12, color="grey")
            axes.set(xscale="log", yscale="log")
        axes.legend(frameon=False, fontsize="small")


CLAIM = Claim(
    4,
    "accuracy",
    "Predictions are within 30% of real runs, and strategies are in the right order",
    "30% at most, the order always right",
    "Small steps are mispredicted most, and steps that move gigabytes between ranks of one GPU. Where two "
    "strategies are predicted within a few percent of each other, their order may be wrong.",
    lambda _: [],
    ours,
    draw,
)
