"""What a chain does with its budget.

`soapstone` first moves tied ops as one, among configurations on devices next to one another, where good strategies lie
close together: from each initial strategy a walk that cools down, then a descent, and the same from the best, warmer
and warmer. Only then it moves single ops, and ends with a descent over the whole space to a strategy that no change of
one op improves. Where time is left it begins again. `paper` is FlexFlow's own: single ops, any configuration, one
temperature, from each initial strategy in turn.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from .chain import Chain
from .options import Native
from .tying import Groups

# The first temperature is a share of the cost; ours is for all moves together, since one of many matters less.
TEMPERATURES = {"soapstone": 0.08, "paper": 5e-4}
COOLING = 10  # the last temperature of a walk is as much lower
ENOUGH = 0.3  # of all neighbours, tried in vain, end a descent that is not the last
SHAKES = 8  # times that it walks on from the best, before single ops move
WALK = 1500  # proposals of a walk, but
WALKED = 2  # at most this part of all proposals

Start = Callable[[Chain, Groups], Sequence[Native]]


def soapstone(chain: Chain, levels: list[Groups], starts: Sequence[Start], temperature: float) -> None:
    coarse, *finer = levels
    refined = None
    while not chain.spent():
        for start in starts:
            strategy = start(chain, coarse)
            chain.go(strategy)  # it may be the best before anything is tied
            _explore(chain, strategy, coarse, temperature)
        for shake in range(SHAKES):
            _explore(chain, chain.native.best, coarse, temperature * 2 ** (shake % 4))
        if chain.cost != refined:
            for groups in finer:
                _explore(chain, chain.native.best, groups, temperature)
            chain.polish(levels[-1])
            refined = chain.cost
        if chain.stalls():
            return


def _explore(chain: Chain, strategy: Sequence[Native], groups: Groups, temperature: float) -> None:
    """A walk that cools down and a descent, from a strategy whose groups are tied first."""
    if chain.spent():
        return
    tied = any(len(group) > 1 for group in groups)
    moves = chain.options.moves(groups, compact=tied)
    first = temperature / max(len(moves), 1)
    chain.go_tied(strategy, groups)
    chain.walk(moves, (first, first / COOLING), proposals=min(WALK, chain.budget.proposals // WALKED))
    chain.descend(moves, share=ENOUGH)


def paper(chain: Chain, levels: list[Groups], starts: Sequence[Start], temperature: float) -> None:
    ops = levels[-1]
    moves = chain.options.moves(ops)
    for number, start in enumerate(starts, 1):
        chain.go(start(chain, ops))
        share = number / len(starts)
        chain.walk(moves, (temperature, temperature), scale=chain.native.makespan, share=share, patient=False)
    chain.judge(ops)


METHODS = {"soapstone": soapstone, "paper": paper}
