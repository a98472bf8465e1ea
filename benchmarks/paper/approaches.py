"""The approaches that the paper compares, and ours, each asked for a strategy in one setting."""

from __future__ import annotations

from time import monotonic

import soapstone as ss
from soapstone.searching import optcnn
from soapstone.searching.reinforce import reinforce

from .jobs import Found, Job, Results
from .settings import TRAINING, Setting, search

BASELINES = ss.baselines.UNSHARDED
SEARCHED = ("optcnn", "reinforce", "paper", "soapstone")
NAMES = {
    "data": "data parallelism",
    "model": "model parallelism",
    "expert": "expert-designed",
    "optcnn": "OptCNN",
    "reinforce": "REINFORCE",
    "paper": "the paper's MCMC",
    "soapstone": "Soapstone",
}


def approach(
    model: str, machine: str, batch: str, batch_norm: str, method: str, budget: float | None = None, seed: int = 0
) -> Found:
    """What the strategy of an approach comes to by the simulator, or why it has none."""
    setting = Setting(model, machine, batch, batch_norm)
    graph, topology = setting.graph, setting.topology
    begun = monotonic()
    try:
        strategy = _strategy(graph, topology, method, budget, seed)
    except ss.SoapstoneError as error:
        return {"refused": str(error)}
    seconds = monotonic() - begun
    sim = setting.simulated(strategy)
    return {
        "makespan": sim.makespan,
        "moved": sim.moved,
        "compute": sim.compute_time,
        "exposed": sim.exposed_communication,
        "fits": sim.fits,
        "samples": setting.samples,
        "seconds": round(seconds, 2),
    }


def _strategy(
    graph: ss.OperatorGraph, topology: ss.Topology, method: str, budget: float | None, seed: int
) -> ss.Strategy:
    if method in BASELINES:
        return ss.baselines.BASELINES[method](graph, topology)
    if method == "optcnn":
        return optcnn(graph, topology, training=TRAINING, budget=budget)
    if method == "reinforce":
        return reinforce(graph, topology, training=TRAINING, budget=budget, seed=seed).strategy
    return search(graph, topology, budget=budget, seed=seed, method=method).strategy


def job(setting: Setting, method: str, budget: float, seed: int = 0) -> Job:
    searched = {"budget": budget, "seed": seed} if method in SEARCHED else {}
    return Job(approach, {**setting.data, "method": method, **searched})


def jobs(setting: Setting, budget: float, methods: tuple[str, ...] = (*BASELINES, *SEARCHED)) -> list[Job]:
    return [job(setting, method, budget) for method in methods]


def found(results: Results, setting: Setting, method: str, budget: float, seed: int = 0) -> Found | None:
    """None where the approach was not asked, or has no strategy that fits."""
    asked = job(setting, method, budget, seed)
    row = results.get(asked)
    return row if row and row.get("fits") else None


def makespan(results: Results, setting: Setting, method: str, budget: float, seed: int = 0) -> float | None:
    row = found(results, setting, method, budget, seed)
    return row["makespan"] if row else None


def rate(results: Results, setting: Setting, method: str, budget: float) -> float | None:
    """Samples a second on each device."""
    row = found(results, setting, method, budget)
    return row["samples"] / row["makespan"] / setting.topology.num_devices if row else None


def speed_up(results: Results, setting: Setting, budget: float, over: str, of: str = "soapstone") -> float | None:
    ours, theirs = (makespan(results, setting, method, budget) for method in (of, over))
    return theirs / ours if ours and theirs else None
