"""Boxes that overlap are found, in any arrangement."""

from __future__ import annotations

from itertools import combinations, product

from hypothesis import given
from hypothesis import strategies as st

from soapstone.runtime.checkpoints.coverage import are_apart

SIDE = 4
SIDES = [(first, size) for first in range(SIDE) for size in range(1, SIDE - first + 1)]


def cells(box: tuple[tuple[int, ...], tuple[int, ...]]) -> set[tuple[int, ...]]:
    return set(product(*(range(first, first + size) for first, size in zip(*box))))


@given(st.integers(0, 3).flatmap(lambda ndim: st.lists(st.tuples(*[st.sampled_from(SIDES)] * ndim), max_size=6)))
def test_boxes_are_apart_if_no_two_share_a_cell(sides: list[tuple[tuple[int, int], ...]]) -> None:
    boxes = [(tuple(first for first, _ in box), tuple(size for _, size in box)) for box in sides]
    assert are_apart(boxes) == all(not cells(one) & cells(other) for one, other in combinations(boxes, 2))


def test_boxes_that_no_cut_separates_are_compared() -> None:
    wheel = [((0, 0), (1, 2)), ((0, 2), (2, 1)), ((2, 1), (1, 2)), ((1, 0), (2, 1)), ((1, 1), (1, 1))]
    assert are_apart(wheel)
    assert not are_apart([*wheel, ((1, 1), (1, 1))])
    assert are_apart([((i, 0), (1, 9)) for i in range(5000)])
