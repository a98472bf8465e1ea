"""What a chain does with its budget.

`soapstone` first moves tied ops as one, among configurations on devices next to one another, where good strategies lie
close together: from each initial strategy a walk that cools down, then a descent, and the same from the best, warmer
and warmer. Only then it moves single ops, and ends with a descent over the whole space to a strategy that no change of
one op improves. Where time is left it begins again. `paper` is FlexFlow's own: single ops, any device for any part, one
temperature, from each initial strategy in turn, which has its share of the budget and ends where half of that brings
nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ..strategy import Native
from .chain import Chain
from .tying import Groups, tied

# The first temperature is a share of the cost; ours is for all moves together, since one of many matters less.
TEMPERATURES = {"soapstone": 0.08, "paper": 5e-4}
COOLING = 10  # the last temperature of a walk is as much lower
ENOUGH = 0.3  # of all neighbours, tried without an improvement, end a descent that is not the last
SHAKES = 8  # times that it walks on from the best, before single ops move
WALK = 1500  # proposals of a walk, but
WALKED = 0.5  # at most this share of all proposals
AGAIN = 3  # times what refining took must be left to begin anew, so that it ends refined

Start = Callable[[Chain, Groups], Sequence[Native]]


def soapstone(chain: Chain, levels: list[Groups], starts: Sequence[Start], temperature: float) -> None:
    refined, took = None, 0
    if not chain.options.moves(levels[-1]):
        return chain.polish(levels[-1])
    neighbours = chain.options.num_neighbours(levels[-1])
    while not chain.spent():
        _scout(chain, levels[0], starts, temperature, neighbours)
        if chain.cost != refined:
            before = chain.native.num_proposals
            for groups in levels[1:]:
                _explore(chain, chain.native.best, groups, temperature)
            chain.polish(levels[-1])
            refined, took = chain.cost, chain.native.num_proposals - before
        if chain.stalls() or (chain.locally_optimal[0] == "yes" and not chain.suffices_for(AGAIN * took)):
            return


def _scout(chain: Chain, coarse: Groups, starts: Sequence[Start], temperature: float, neighbours: int) -> None:
    """On the coarsest level. It takes a third of what is left of the budget, and all of it where the rest would not do
    to look at every neighbour."""
    third = chain.share + (1 - chain.share) / 3

    def is_time() -> bool:
        return chain.share >= third and chain.suffices_for(neighbours)

    for start in starts:
        if not is_time():
            strategy = start(chain, coarse)
            chain.go(strategy)  # it may be the best before anything is tied
            _explore(chain, strategy, coarse, temperature)
    for shake in range(SHAKES):
        if not is_time():
            _explore(chain, chain.native.best, coarse, temperature * 2 ** (shake % 4))


def _explore(chain: Chain, strategy: Sequence[Native], groups: Groups, temperature: float) -> None:
    """A walk that cools down and a descent, from a strategy whose groups are tied first."""
    if chain.spent():
        return
    moves = chain.options.moves(groups, compact=any(len(group) > 1 for group in groups))
    first = temperature / max(len(moves), 1)
    chain.go(tied(strategy, groups))
    chain.walk(moves, (first, first / COOLING), proposals=min(WALK, int(chain.budget.proposals * WALKED)))
    chain.descend(moves, share=ENOUGH)


def paper(chain: Chain, levels: list[Groups], starts: Sequence[Start], temperature: float) -> None:
    ops, each = levels[-1], 1 / len(starts)
    moves = chain.options.moves_anywhere()
    for start in starts if moves else []:
        chain.go(start(chain, ops))
        chain.walk(
            moves,
            (temperature, temperature),
            scale=chain.native.makespan,
            share=min(chain.share + each, 1.0),
            patience=each / 2,
        )
    chain.judge(ops)


METHODS = {"soapstone": soapstone, "paper": paper}
