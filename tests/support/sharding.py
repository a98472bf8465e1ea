"""Strategies whose parameters are sharded, and whose ops are recomputed, at random."""

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


def recomputed(strategy: ss.Strategy, seed: int, share: float = 0.6) -> ss.Strategy:
    """The same with a share of the ops recomputed, next to one another more often than not."""
    rng, chosen, again = random.Random(seed), {}, False
    for name, configuration in strategy.items():
        if rng.random() < 0.5:
            again = rng.random() < share
        chosen[name] = replace(configuration, recompute=again)
    return strategy.replace(chosen)
