"""A curve in a terminal: dots of braille letters, two columns and four rows to a letter."""

from __future__ import annotations

from collections.abc import Sequence

_DOTS = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))  # by column, then row from the top
_EMPTY = 0x2800


def drawn(points: Sequence[tuple[float, float]], width: int, height: int, right: float, top: float) -> list[str]:
    """A step curve through (x, y) with x in order, from 0 to `right` and from 0 to `top`: lines of text, the highest
    first. It is drawn up to the last point."""
    columns, rows = 2 * width, 4 * height
    letters = [[_EMPTY] * width for _ in range(height)]
    level: int | None = None
    next_point = 0
    last = min(int(points[-1][0] / right * columns), columns - 1) if points and right > 0 else -1
    for column in range(last + 1):
        before = level
        while next_point < len(points) and points[next_point][0] <= (column + 1) * right / columns:
            level = max(0, min(rows - 1, rows - 1 - int(points[next_point][1] / max(top, 1e-30) * (rows - 1))))
            next_point += 1
        if level is None:
            continue
        first, end = (level, level) if before is None else (min(before, level), max(before, level))
        for row in range(first, end + 1):
            letters[row // 4][column // 2] |= _DOTS[column % 2][row % 4]
    return ["".join(map(chr, line)) for line in letters]
