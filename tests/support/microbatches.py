"""Strategies with microbatches, at random."""

from __future__ import annotations

import random
from dataclasses import replace

import soapstone as ss
from soapstone.graph import microbatch


def microbatched(graph: ss.OperatorGraph, topology: ss.Topology, count: int, seed: int) -> ss.Strategy:
    """A random strategy for so many microbatches, with any number of them in flight."""
    rng = random.Random(seed)
    drawn = ss.baselines.random(microbatch(graph, count), topology, seed=seed)
    chosen = {name: replace(each, in_flight=rng.choice((None, *range(1, count + 2)))) for name, each in drawn.items()}
    return ss.Strategy(graph, topology, chosen, count)
