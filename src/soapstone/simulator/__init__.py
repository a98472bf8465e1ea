"""Predict one training iteration: its time, what it moves, what it keeps in memory."""

from .incremental import ENGINES, FASTEST, Simulator
from .memory import Filling, Memory, states_of, temporaries_of, workspace_of
from .pipelines import fastest_pipeline
from .recomputing import least_recomputed, runs_of
from .simulation import Simulation, simulate
from .tasks import BACKWARD, COMBINE, COMMUNICATION, FORWARD, GATHER, KINDS, SYNC, TRANSFER, UPDATE
from .throughput import Throughput, counted, throughput
from .times import KnownTimes, machine_of, translated_errors
from .training import Training, check_training

__all__ = [
    "BACKWARD",
    "COMBINE",
    "COMMUNICATION",
    "ENGINES",
    "FASTEST",
    "FORWARD",
    "GATHER",
    "KINDS",
    "SYNC",
    "TRANSFER",
    "UPDATE",
    "Filling",
    "KnownTimes",
    "Memory",
    "Simulation",
    "Simulator",
    "Throughput",
    "Training",
    "check_training",
    "counted",
    "fastest_pipeline",
    "least_recomputed",
    "machine_of",
    "runs_of",
    "simulate",
    "states_of",
    "temporaries_of",
    "throughput",
    "translated_errors",
    "workspace_of",
]
