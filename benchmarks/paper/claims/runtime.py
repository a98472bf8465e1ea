"""Claim 15: data parallelism in our runtime against the mainstream framework's."""

from __future__ import annotations

from pathlib import Path
from statistics import geometric_mean

from benchmarks import steps

from ..claim import NOT_RUN, Claim, Ours, table
from ..figures import COLOURS, figure, plain
from ..jobs import Found, Job, Results
from ..scale import Scale

COMPARED = [name for name in steps.MODELS if name not in steps.BESIDE]


def runtime(model: str, rounds: int) -> Found:
    seconds, ratio = steps.against_ddp(*steps.MODELS[model], rounds)
    return {"seconds": seconds, "ratio": ratio.value, "low": ratio.low, "high": ratio.high}


def job(model: str, scale: Scale) -> Job:
    return Job(runtime, {"model": model, "rounds": scale.rounds}, alone=True)


def known(scale: Scale, results: Results) -> dict[str, Found]:
    return {model: row for model in COMPARED if (row := results.get(job(model, scale)))}


def ours(scale: Scale, results: Results) -> Ours:
    ratios = [row["ratio"] for row in known(scale, results).values()]
    if not ratios:
        return Ours(NOT_RUN)
    mean = geometric_mean(ratios)
    return Ours(f"two gloo ranks: {mean:.2f} of DDP's step in the mean", "NCCL ranks: [steps](steps.md)")


def more(scale: Scale, results: Results) -> str:
    rows = [
        [model, f"{row['seconds'] * 1e3:.1f} ms", f"{row['ratio']:.2f}", f"{row['low']:.2f} to {row['high']:.2f}"]
        for model, row in known(scale, results).items()
    ]
    return table(["model", "our step", "of DDP's", "90% interval"], rows)


def draw(scale: Scale, results: Results, path: Path) -> None:
    rows = known(scale, results)
    with figure(path, (7, 3.2)) as drawn:
        axes = plain(drawn.subplots(), "data parallelism on two gloo ranks", y="step / DDP's")
        axes.bar(list(rows), [row["ratio"] for row in rows.values()], color=COLOURS[0])
        axes.axhline(1, color="grey", linewidth=1)


CLAIM = Claim(
    15,
    "runtime",
    "Data parallelism in this runtime is at least as fast as in the mainstream framework",
    "at least as fast as in TensorFlow r1.7 and PyTorch v0.3",
    "Against today's DistributedDataParallel, which hides its sums behind backward, as we do; a ratio above 1 "
    "is slower than it.",
    lambda scale: [job(model, scale) for model in COMPARED],
    ours,
    draw,
    more,
)
