"""Ours, not the paper's: the search is at least as good as every rival, everywhere, at its default budget."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from statistics import median

from ..approaches import BASELINES, NAMES, job, makespan
from ..claim import NOT_RUN, Claim, Ours, table, times
from ..figures import figure, plain
from ..jobs import Job, Results
from ..scale import Scale
from ..settings import BATCH_NORMS, MODELS, Setting, machine

SIZES = (("p100", 4), ("p100", 16), ("k80", 4), ("k80", 16), ("k80", 64), ("p100_flexflow", 16), ("k80_flexflow", 64))
MACHINES = [machine(kind, n) for kind, n in SIZES]
RIVALS = (*BASELINES, "optcnn", "reinforce", "paper")
BUDGET, SEEDS = 30.0, range(3)  # the search's default
ENOUGH = 0.99


SETTINGS = [
    Setting(model, text, batch, norm)
    for text, batch in product(MACHINES, ("per device", "whole"))
    for model in MODELS
    for norm in BATCH_NORMS.get(model, ("local",))
]


def wanted(scale: Scale) -> list[Job]:
    """Nothing in the quick version: searches at the default budget take hours. More seeds come last."""
    if not scale.is_whole:
        return []
    first = [job(setting, method, BUDGET) for setting in SETTINGS for method in ("soapstone", *RIVALS)]
    return first + [job(setting, "soapstone", BUDGET, seed) for seed in SEEDS[1:] for setting in SETTINGS]


def found_by_seeds(results: Results, setting: Setting) -> list[float]:
    return [seconds for seed in SEEDS if (seconds := makespan(results, setting, "soapstone", BUDGET, seed))]


def ratios(results: Results, setting: Setting) -> dict[str, float]:
    """How many times as long each rival's strategy takes as the median of ours."""
    mine = found_by_seeds(results, setting)
    theirs = {rival: makespan(results, setting, rival, BUDGET) for rival in RIVALS}
    return {rival: seconds / median(mine) for rival, seconds in theirs.items() if seconds and mine}


def ours(_: Scale, results: Results) -> Ours:
    least = [min(found.values()) for setting in SETTINGS if (found := ratios(results, setting))]
    if not least:
        return Ours(NOT_RUN)
    lost = sum(ratio < ENOUGH for ratio in least)
    seeds = [len(found_by_seeds(results, setting)) for setting in SETTINGS if ratios(results, setting)]
    fewer = f" ({seeds.count(len(SEEDS))} of them; the others of fewer)" if min(seeds) < len(SEEDS) else ""
    return Ours(
        f"{len(least)} settings, the median of {len(SEEDS)} seeds{fewer}. The "
        f"best rival's iteration is at least {min(least):.3f} times as long as ours; {lost} settings below {ENOUGH}"
    )


def more(_: Scale, results: Results) -> str:
    rows = []
    for setting in SETTINGS:
        if not (found := ratios(results, setting)):
            continue
        norm = f", {setting.batch_norm} batch norm" if setting.model in BATCH_NORMS else ""
        label = f"{MODELS[setting.model]}{norm}, `{setting.machine}`, {setting.batch}"
        rows.append([label, *(times(found.get(rival)) for rival in RIVALS)])
    return (
        table(["a rival's iteration / ours", *(NAMES[rival] for rival in RIVALS)], rows)
        if rows
        else NOT_RUN.capitalize() + "."
    )


def draw(_: Scale, results: Results, path: Path) -> None:
    least = sorted(min(found.values()) for setting in SETTINGS if (found := ratios(results, setting)))
    if not least:
        return
    with figure(path, (8, 3.2)) as drawn:
        axes = plain(drawn.subplots(), "the best rival's iteration / ours, every setting", "setting", "")
        axes.plot(least, "o", markersize=3)
        axes.axhline(ENOUGH, color="grey", linewidth=1)


CLAIM = Claim(
    16,
    "rivals",
    "Not in the paper: is the search never worse than any rival by more than 1%, at its default budget?",
    "-",
    "",
    wanted,
    ours,
    draw,
    more,
)
