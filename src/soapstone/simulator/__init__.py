"""Predict one training iteration: its time, what it moves, what it keeps in memory."""

from .incremental import ENGINES, Simulator
from .memory import Memory
from .simulation import Simulation, simulate
from .tasks import BACKWARD, COMBINE, FORWARD, KINDS, SYNC, TRANSFER, UPDATE

__all__ = [
    "BACKWARD",
    "COMBINE",
    "ENGINES",
    "FORWARD",
    "KINDS",
    "SYNC",
    "TRANSFER",
    "UPDATE",
    "Memory",
    "Simulation",
    "Simulator",
    "simulate",
]
