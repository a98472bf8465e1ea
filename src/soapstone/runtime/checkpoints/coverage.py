"""Whether boxes of a tensor overlap. If they do not, and have as many elements as the tensor, they fill it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations

Corners = tuple[tuple[int, ...], tuple[int, ...]]  # offsets and sizes, each at least 1
_MOST_PAIRS = 1024  # the most boxes that are compared in pairs; cuts separate all boxes that a save writes


def are_apart(boxes: Sequence[Corners]) -> bool:
    """Whether no two boxes overlap. Cuts along an axis separate most boxes; those that no cut separates are compared in
    pairs."""
    groups = [list(boxes)]
    while groups:
        group = groups.pop()
        parts = _separated(group) if len(group) > 1 else []
        if len(parts) == 1 and (len(group) > _MOST_PAIRS or any(_overlap(*pair) for pair in combinations(group, 2))):
            return False
        groups += parts if len(parts) > 1 else []
    return True


def _separated(boxes: Sequence[Corners]) -> list[list[Corners]]:
    """Groups of boxes whose intervals on some axis do not overlap; one group if no axis separates any."""
    for axis in range(len(boxes[0][0])):
        groups = list(_groups(boxes, axis))
        if len(groups) > 1:
            return groups
    return [list(boxes)]


def _groups(boxes: Sequence[Corners], axis: int) -> Iterator[list[Corners]]:
    group: list[Corners] = []
    end = 0
    for box in sorted(boxes, key=lambda box: box[0][axis]):
        if group and box[0][axis] >= end:
            yield group
            group = []
        group.append(box)
        end = max(end, box[0][axis] + box[1][axis])
    yield group


def _overlap(one: Corners, other: Corners) -> bool:
    return all(a < c + d and c < a + b for a, b, c, d in zip(one[0], one[1], other[0], other[1]))
