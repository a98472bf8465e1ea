"""Strategies whose parameters are sharded at random."""

from __future__ import annotations

import random
from dataclasses import replace

import soapstone as ss
from soapstone.strategy import SHARDS


def sharded(strategy: ss.Strategy, seed: int, shards: tuple[str, ...] = SHARDS) -> ss.Strategy:
    """The same with any of these shards for each op; ops that share a parameter have the same."""
    graph, rng = strategy.graph, random.Random(seed)
    chosen = {}
    for group in graph.sharers:
        shard = rng.choice(shards)
        for op in group:
            name = graph.ops[op].name
            chosen[name] = replace(strategy[name], shard=shard)
    return strategy.replace(chosen)
