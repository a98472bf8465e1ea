"""Predict one training iteration: its time, what it moves, what it keeps in memory."""

from .incremental import ENGINES, FASTEST, Simulator
from .memory import Memory, states_of
from .simulation import BUCKET_BYTES, Simulation, simulate
from .tasks import BACKWARD, COMBINE, FORWARD, KINDS, SYNC, TRANSFER, UPDATE
from .times import KnownTimes, in_a_sentence, machine_of

__all__ = [
    "BACKWARD",
    "BUCKET_BYTES",
    "COMBINE",
    "ENGINES",
    "FASTEST",
    "FORWARD",
    "KINDS",
    "SYNC",
    "TRANSFER",
    "UPDATE",
    "KnownTimes",
    "Memory",
    "Simulation",
    "Simulator",
    "in_a_sentence",
    "machine_of",
    "simulate",
    "states_of",
]
