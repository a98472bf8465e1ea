"""Predict one training iteration: its time, what it moves, what it keeps in memory."""

from .memory import Memory
from .simulation import Simulation, simulate
from .tasks import BACKWARD, COMBINE, FORWARD, KINDS, SYNC, TRANSFER, UPDATE, extents_of

__all__ = [
    "BACKWARD",
    "COMBINE",
    "FORWARD",
    "KINDS",
    "SYNC",
    "TRANSFER",
    "UPDATE",
    "Memory",
    "Simulation",
    "extents_of",
    "simulate",
]
