"""What a chain does with its budget.

`soapstone` first moves tied ops as one, among configurations on devices next to one another, where good strategies lie
close together: from each initial strategy a walk that cools down, then a descent. Only then it moves single ops, and
ends with a descent over the whole space to a strategy that no change of one op improves. Where time is left it begins
again. `paper` is FlexFlow's own: single ops, any configuration, one temperature, from each initial strategy in turn.
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
WALK = 1000  # proposals of a walk, but
WALKED = 4  # at most this part of all proposals

Start = Callable[[Chain, Groups], Sequence[Native]]


def soapstone(chain: Chain, levels: list[Groups], starts: Sequence[Start], temperature: float) -> None:
    coarse, *finer = levels
    refined = None
    while not chain.spent():
        for start in starts:
            chain.go_tied(start(chain, coarse), coarse)
            _explore(chain, coarse, temperature)
            if chain.spent():
                return
        for shake in range(SHAKES):
            chain.go_tied(chain.native.best, coarse)
            _explore(chain, coarse, temperature * 2 ** (shake % 4))
            if chain.spent():
                return
        if chain.cost != refined:
            for groups in finer:
                chain.go_tied(chain.native.best, groups)
                _explore(chain, groups, temperature)
            chain.polish(levels[-1])
            refined = chain.cost
        if chain.stalls():
            return


def _explore(chain: Chain, groups: Groups, temperature: float) -> None:
    moves = chain.options.moves(groups, compact=True)
    first = temperature / max(len(moves), 1)
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
