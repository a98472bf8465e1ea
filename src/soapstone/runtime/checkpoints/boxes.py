"""What a rank keeps of a tensor, as boxes over the tensor's own axes. A shard is a box over factors of the axes, and a
share is a run of flat elements of such a box; both are a few plain boxes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from math import prod
from typing import NamedTuple

import torch

from ...parts import Box, lengths


class Chunk(NamedTuple):
    """A plain box of a tensor, and the memory that holds its elements in row-major order of any shape."""

    offsets: tuple[int, ...]
    sizes: tuple[int, ...]
    values: torch.Tensor

    def read(self) -> torch.Tensor:
        return self.values.detach().reshape(self.sizes)

    def write(self, values: torch.Tensor) -> None:
        self.values.detach().copy_(values.reshape(self.values.shape))


def chunks_of(box: Box, dims: Sequence[Sequence[int]], window: torch.Tensor) -> Iterator[Chunk]:
    """A window, whose axes are the factors that `dims` has for each axis, by plain boxes of its memory."""
    sides = iter(box)
    axes = [list(_intervals([next(sides) for _ in factors], factors)) for factors in dims]
    for places in product(*axes):
        index = tuple(part for _, _, own in places for part in own)
        yield Chunk(tuple(first for first, _, _ in places), tuple(size for _, size, _ in places), window[index])


Interval = tuple[int, int, tuple[int | slice, ...]]  # first element, how many, and where they are in a window


def _intervals(sides: Sequence[tuple[int, int]], factors: Sequence[int]) -> Iterator[Interval]:
    """The runs of elements of one axis: what lies inside the last factor that is cut is whole."""
    cut = max((i for i, (side, size) in enumerate(zip(sides, factors)) if side != (0, size)), default=0)
    strides = [prod(factors[i + 1 :]) for i in range(len(factors))]
    if not factors:
        yield 0, 1, ()
        return
    lo, hi = sides[cut]
    for outer in product(*(range(a, b) for a, b in sides[:cut])):
        first = sum(place * stride for place, stride in zip((*outer, lo), strides))
        own = tuple(place - a for place, (a, _) in zip(outer, sides[:cut]))
        yield first, (hi - lo) * strides[cut], (*own, *[slice(None)] * (len(factors) - cut))


def runs(box: Box, first: int, last: int) -> Iterator[tuple[list[tuple[int, int]], int]]:
    """The boxes that make up the flat elements from `first` up to `last` of a box, and where each begins among them."""
    done = 0
    for part in _runs(lengths(box), first, last):
        yield [(lo + a, lo + b) for (lo, _), (a, b) in zip(box, part)], done
        done += prod(b - a for a, b in part)


def _runs(sizes: Sequence[int], first: int, last: int) -> Iterator[tuple[tuple[int, int], ...]]:
    if first >= last:
        return
    if not sizes:
        yield ()
        return
    row = prod(sizes[1:])
    begin, end = -(-first // row), last // row  # whole rows
    if begin > end:  # all in one row
        begin = first // row
        yield from (((begin, begin + 1), *rest) for rest in _runs(sizes[1:], first - begin * row, last - begin * row))
        return
    yield from (((begin - 1, begin), *rest) for rest in _runs(sizes[1:], first - (begin - 1) * row, row) if first % row)
    if begin < end:
        yield ((begin, end), *((0, size) for size in sizes[1:]))
    yield from (((end, end + 1), *rest) for rest in _runs(sizes[1:], 0, last - end * row))


def remainder(sizes: Sequence[int], boxes: Sequence[Box]) -> list[Box]:
    """What disjoint boxes leave of a tensor."""
    left: list[Box] = [[(0, size) for size in sizes]]
    for box in boxes:
        left = [rest for part in left for rest in _without(part, box)]
    return left


def _without(part: Box, box: Box) -> Iterator[Box]:
    """A box less another one: a slab on either side along each axis, of what the axes before have left."""
    common = [(max(a, c), min(b, d)) for (a, b), (c, d) in zip(part, box)]
    if any(lo >= hi for lo, hi in common):
        yield part
        return
    for axis, ((lo, hi), (first, last)) in enumerate(zip(part, common)):
        for side in ((lo, first), (last, hi)):
            if side[0] < side[1]:
                yield [*common[:axis], side, *part[axis + 1 :]]
