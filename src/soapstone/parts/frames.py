"""Cut a box of a factored tensor out of a larger one, whatever dims each side has.

A local tensor has the axes of the whole one; each axis holds, in order, the elements of a box over that axis's dims.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import torch
import torch.nn.functional as F

from .. import _core

Box = Sequence[tuple[int, int]]
Factoring = Sequence[Sequence[int]]


def lengths(box: Box) -> list[int]:
    return [max(hi - lo, 0) for lo, hi in box]


def hull(boxes: Sequence[Box]) -> Box:
    """The smallest box that holds all of these, and there is at least one."""
    return [(min(lo for lo, _ in side), max(hi for _, hi in side)) for side in zip(*boxes)]


def overlap(one: Box, other: Box) -> Box:
    """What two boxes have in common."""
    return [(max(a, c), min(b, d)) for (a, b), (c, d) in zip(one, other)]


def common(one: Box, other: Box) -> int:
    """How many elements two boxes have in common."""
    return prod(lengths(overlap(one, other)))


def projected(box: Box, dims: Factoring, onto: Factoring) -> Box | None:
    """The smallest box over other dims that holds this one; None where it is empty."""
    found = _core.project(list(box), [list(axis) for axis in dims], [list(axis) for axis in onto])
    found = [part for part in found if all(hi > lo for lo, hi in part)]
    return hull(found) if found else None


def by_axis(box: Box, factoring: Factoring) -> list[Box]:
    """The box cut into one box an axis."""
    result, at = [], 0
    for axis in factoring:
        result.append(box[at : at + len(axis)])
        at += len(axis)
    return result


def local_shape(box: Box, factoring: Factoring) -> list[int]:
    return [prod(lengths(part)) for part in by_axis(box, factoring)]


def whole(factoring: Factoring) -> Box:
    return [(0, size) for axis in factoring for size in axis]


class Unread(float):
    """Zero, where a slice is padded to a hull: nobody reads these elements."""


def reframe(x: torch.Tensor, have: Box, have_dims: Factoring, need: Box, need_dims: Factoring) -> torch.Tensor:
    """The box `need`, over `need_dims`, of the tensor whose box `have`, over `have_dims`, is x."""
    if any(hi <= lo for lo, hi in need):
        return x.new_zeros(local_shape(need, need_dims))
    if have_dims == need_dims and list(have) == list(need):
        return x
    parts = zip(by_axis(have, have_dims), have_dims, by_axis(need, need_dims), need_dims)
    for axis, (had, had_dims, wanted, wanted_dims) in enumerate(parts):
        x = _reframe_axis(x, axis, had, list(had_dims), wanted, list(wanted_dims))
    return x


def _reframe_axis(
    x: torch.Tensor, axis: int, have: Box, have_dims: list[int], need: Box, need_dims: list[int]
) -> torch.Tensor:
    if have_dims == need_dims:
        if list(have) == list(need):
            return x
        return _merge(_narrow(_unmerge(x, axis, lengths(have)), axis, have, need), axis, len(need))
    fine = _core.refine(have_dims, need_dims)
    if fine is None:  # then everything is here: the core takes such axes whole
        return _merge(_narrow(_unmerge(x, axis, need_dims), axis, whole([need_dims]), need), axis, len(need))
    x, box = _to_fine(x, axis, have, have_dims, fine)
    return _from_fine(x, axis, box, fine, need, need_dims)


def _to_fine(
    x: torch.Tensor, axis: int, have: Box, have_dims: list[int], fine: list[int]
) -> tuple[torch.Tensor, list[tuple[int, int]]]:
    """Unmerge an axis into fine dims; an interval that is no box there is padded to its hull."""
    x = _unmerge(x, axis, lengths(have))
    box: list[tuple[int, int]] = []
    for (lo, hi), dims in zip(have, _grouped(fine, have_dims)):
        at = axis + len(box)
        hull, start, end = _hull(lo, hi, dims)
        if (start, end) != (lo, hi):
            x = F.pad(x, [0, 0] * (x.ndim - at - 1) + [lo - start, end - hi], value=Unread())
        x = _unmerge(x, at, lengths(hull))
        box += hull
    return x, box


def _from_fine(
    x: torch.Tensor, axis: int, box: list[tuple[int, int]], fine: list[int], need: Box, need_dims: list[int]
) -> torch.Tensor:
    hulls = [_hull(lo, hi, dims) for (lo, hi), dims in zip(need, _grouped(fine, need_dims))]
    x = _narrow(x, axis, box, [interval for hull, _, _ in hulls for interval in hull])
    for i, ((lo, hi), (hull, start, _)) in enumerate(zip(need, hulls)):
        x = _merge(x, axis + i, len(hull)).narrow(axis + i, lo - start, hi - lo)
    return _merge(x, axis, len(need))


def _grouped(fine: list[int], dims: list[int]) -> list[list[int]]:
    """Which fine dims make up each dim."""
    rest, groups = list(fine), []
    for size in dims:
        group: list[int] = []
        while prod(group) < size:
            group.append(rest.pop(0))
        groups.append(group)
    return groups


def _hull(lo: int, hi: int, dims: list[int]) -> tuple[list[tuple[int, int]], int, int]:
    """The smallest box over dims that holds the flat interval, and where it starts and ends."""
    if not dims:
        return [], 0, 1
    inner = prod(dims[1:])
    first, last = lo // inner, (hi - 1) // inner
    if first == last:
        box, start, end = _hull(lo - first * inner, hi - first * inner, dims[1:])
        return [(first, first + 1), *box], first * inner + start, first * inner + end
    return [(first, last + 1), *((0, n) for n in dims[1:])], first * inner, (last + 1) * inner


def _unmerge(x: torch.Tensor, axis: int, sizes: list[int]) -> torch.Tensor:
    return x.reshape([*x.shape[:axis], *sizes, *x.shape[axis + 1 :]])


def _merge(x: torch.Tensor, axis: int, count: int) -> torch.Tensor:
    return x.reshape([*x.shape[:axis], prod(x.shape[axis : axis + count]), *x.shape[axis + count :]])


def _narrow(x: torch.Tensor, axis: int, have: Box, need: Box) -> torch.Tensor:
    for i, ((start, end), (lo, hi)) in enumerate(zip(have, need)):
        if (start, end) != (lo, hi):
            x = x.narrow(axis + i, lo - start, hi - lo)
    return x
