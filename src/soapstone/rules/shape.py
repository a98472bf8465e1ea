"""Ops that only move elements. Their lines are made from the call."""

from __future__ import annotations

from functools import partial
from itertools import pairwise
from math import prod

from ..errors import GraphError
from .notation import Map
from .table import Call, Extents, Rule, Shape


def _blocks(a: Shape, b: Shape) -> list[tuple[list[int], list[int]]]:
    """The smallest runs of axes of both shapes that hold the same elements."""
    blocks, i, j = [], 0, 0
    while i < len(a) or j < len(b):
        left, right, m, n = 1, 1, i, j
        while (m == i and n == j) or left != right:
            if (left <= right and i < len(a)) or j >= len(b):
                left, i = left * a[i], i + 1
            else:
                right, j = right * b[j], j + 1
        blocks.append((list(range(m, i)), list(range(n, j))))
    return blocks


def _cuts(shape: Shape, axes: list[int]) -> list[int]:
    """The strides, in elements, at which the axes of a block end."""
    cuts = [1]
    for axis in reversed(axes):
        cuts.append(cuts[-1] * shape[axis])
    return cuts


def _view_names(call: Call) -> tuple[list[str], list[str], dict[str, int]]:
    source, target = call.shapes[0], call.outputs[0]
    if 0 in source:
        return [f"i{axis}!" for axis in range(len(source))], [f"o{axis}!" for axis in range(len(target))], {}
    left, right = ["1"] * len(source), ["1"] * len(target)
    sizes: dict[str, int] = {}
    for number, (ins, outs) in enumerate(_blocks(source, target)):
        strides = sorted({*_cuts(source, ins), *_cuts(target, outs)})
        if any(b % a for a, b in pairwise(strides)):
            for names, axes, mark in ((left, ins, "i"), (right, outs, "o")):
                for axis in axes:
                    names[axis] = f"{mark}{axis}!"
            continue
        for place, (a, b) in enumerate(pairwise(strides)):
            sizes[f"v{number}_{place}"] = b // a
        for names, shape, axes in ((left, source, ins), (right, target, outs)):
            inner = 1
            for axis in reversed(axes):
                outer = inner * shape[axis]
                places = [p for p, a in enumerate(strides[:-1]) if inner <= a < outer]
                names[axis] = "(" + " ".join(f"v{number}_{p}" for p in reversed(places)) + ")" if places else "1"
                inner = outer
    return left, right, sizes


def _view(call: Call) -> str:
    left, right, _ = _view_names(call)
    return f"{' '.join(left)} -> {' '.join(right)}"


def _order(call: Call) -> list[int]:
    rank = len(call.shapes[0])
    if call.kind == "permute":
        return [axis % rank for axis in call.args["dims"]]
    order = list(range(rank))
    if call.kind == "t":
        return order[::-1]
    a, b = call.args["dim0"] % max(rank, 1), call.args["dim1"] % max(rank, 1)
    order[a], order[b] = order[b], order[a]
    return order


def _permute(call: Call) -> str:
    names = [f"x{i}" for i in range(len(call.shapes[0]))]
    return f"{' '.join(names)} -> {' '.join(names[i] for i in _order(call))}"


def _cat(call: Call) -> str:
    names = [f"x{i}" for i in range(len(call.outputs[0]))]
    axis = int(call.args["dim"]) % len(names)
    left = " ".join(f"[{n}]" if i == axis else n for i, n in enumerate(names))
    return ", ".join([left] * len(call.shapes)) + " -> " + " ".join(names)


def _cat_maps(call: Call) -> dict[str, Map]:
    axis = int(call.args["dim"]) % len(call.outputs[0])
    maps, offset = {}, 0
    for number, shape in enumerate(call.shapes):
        maps[f"x{axis}@{number}"] = Map((1, -offset, 1), (1, -offset, 1))
        offset += shape[axis]
    return maps


def _stack(call: Call) -> str:
    """Input i is wanted where the new axis holds i; that rides on its first axis as a dim of size 1."""
    rank = len(call.shapes[0])
    if rank == 0:
        return ", ".join([""] * len(call.shapes)) + " -> new!"
    axis = int(call.args["dim"]) % (rank + 1)
    names = [f"x{i}" for i in range(rank)]
    left = " ".join([f"([new] {names[0]})", *names[1:]])
    out = [*names[:axis], "new", *names[axis:]]
    return ", ".join([left] * len(call.shapes)) + " -> " + " ".join(out)


def _stack_maps(call: Call) -> dict[str, Map]:
    return {f"new@{i}": Map((1, -i, 1), (1, -i, 1)) for i in range(len(call.shapes))}


def _slice_bounds(call: Call) -> tuple[int, int]:
    """First element and step of a slice."""
    start, size = call.args.get("start"), call.shapes[0][call.axis()]
    start = 0 if start is None else start + size if start < 0 else start
    return min(max(start, 0), size), int(call.args.get("step", 1))


def _one_mapped(call: Call, out: list[str]) -> str:
    left = [f"[x{i}]" if i == call.axis() else f"x{i}" for i in range(len(call.shapes[0]))]
    return f"{' '.join(left)} -> {' '.join(out)}"


def _slice_maps(call: Call) -> dict[str, Map]:
    start, step = _slice_bounds(call)
    return {f"x{call.axis()}": Map((step, start, 1), (step, start + 1 - step, 1))}


def _select_maps(call: Call) -> dict[str, Map]:
    index = int(call.args["index"]) % call.shapes[0][call.axis()]
    return {f"x{call.axis()}": Map((0, index, 1), (0, index + 1, 1))}


def _expand(call: Call) -> str:
    extra = len(call.outputs[0]) - len(call.shapes[0])
    return "*b -> *b" if extra == 0 else f"*b -> {' '.join(f'new{i}' for i in range(extra))} *b"


def _repeat(call: Call) -> str:
    """An axis repeated whole is (new x), one with each element repeated is (x new)."""
    out, rank = len(call.outputs[0]), len(call.shapes[0])
    names = [f"x{i}" for i in range(rank)]
    if call.kind == "repeat_interleave":
        axis = call.axis()
        return f"{' '.join(names)} -> {' '.join(f'({n} new)' if i == axis else n for i, n in enumerate(names))}"
    extra = [f"new{i}" for i in range(out - rank)]
    repeated = [f"(new{out - rank + i} {n})" for i, n in enumerate(names)]
    return f"{' '.join(names)} -> {' '.join(extra + repeated)}"


def _repeat_sizes(call: Call) -> dict[str, int]:
    if call.kind == "repeat_interleave":
        return {"new": int(call.args["repeats"])}
    return {f"new{i}": n for i, n in enumerate(call.args["repeats"])}


def _padded_axes(call: Call) -> dict[int, int]:
    """The axes that a padding touches, and how much comes before."""
    rank, given = len(call.shapes[0]), call.args["pad"]
    return {rank - 1 - i: given[2 * i] for i in range(len(given) // 2)}


def _pad(call: Call) -> str:
    padded = _padded_axes(call)
    left = [f"[x{i}]" if i in padded else f"x{i}" for i in range(len(call.shapes[0]))]
    return f"{' '.join(left)} -> {' '.join(f'x{i}' for i in range(len(left)))}"


def _upsample_maps(call: Call) -> dict[str, Map]:
    """Output k copies input floor(k in / out)."""
    names = ("height", "width") if call.kind.endswith("2d") else ("length",)
    sizes = list(zip(names, call.shapes[0][-len(names) :], call.outputs[0][-len(names) :]))
    given = call.args.get("scale_factors") or [call.args.get(key) for key in ("scales_h", "scales_w", "scales")]
    scales = [scale for scale in given if scale]
    for scale, (_, inner, outer) in zip(scales, sizes):
        if any(min(int(k / scale), inner - 1) != k * inner // outer for k in range(outer)):
            raise GraphError("a scale that is not the ratio of the sizes has no rule")
    return {name: Map((inner, 0, outer), (inner, 1 - inner, outer)) for name, inner, outer in sizes}


def _index(call: Call) -> str:
    """Some axes are picked from by indices; they are needed whole."""
    if "axis" not in call.args:
        raise GraphError(f"{call.kind} on axes apart or with boolean indices has no rule")
    first, count = int(call.args["axis"]), len(call.shapes) - 1
    names = [f"x{i}" for i in range(len(call.shapes[0]))]
    picked = [f"picked{i}" for i in range(count)]
    left = [*names[:first], *picked, *names[first + count :]]
    out = [*names[:first], "*j", *names[first + count :]]
    return ", ".join([" ".join(left), *["*j"] * count]) + " -> " + " ".join(out)


def _gather(call: Call) -> str:
    """One axis is picked from, element by element; it is needed whole."""
    names = [f"x{i}" for i in range(len(call.outputs[0]))]
    if any(a != b for i, (a, b) in enumerate(zip(call.shapes[0], call.shapes[1])) if i != call.axis()):
        raise GraphError("gather from a part of the other axes has no rule")
    left = [f"picked{i}" if i == call.axis() else n for i, n in enumerate(names)]
    return f"{' '.join(left)}, {' '.join(names)} -> {' '.join(names)}"


def _with_axis(call: Call, name: str) -> str:
    """The output's axes, the one that the call is along by this name."""
    return " ".join(name if i == call.axis() else f"x{i}" for i in range(len(call.outputs[0])))


def _scatter(call: Call) -> str:
    """One axis is written to, element by element; it is needed whole."""
    for shape in call.shapes[1:]:
        if any(a != b for i, (a, b) in enumerate(zip(call.shapes[0], shape)) if i != call.axis()):
            raise GraphError("scatter to a part of the other axes has no rule")
    own, given = (_with_axis(call, mark) for mark in ("to!", "from!"))
    return ", ".join([own, *[given] * (len(call.shapes) - 1)]) + f" -> {own}"


def _index_add(call: Call) -> str:
    """Rows are added to others by number; along that axis all is needed."""
    own, given = (_with_axis(call, mark) for mark in ("to!", "from!"))
    return f"{own}, from!, {given} -> {own}"


def _made(call: Call, extents: Extents) -> int:
    """An operation for each element that comes out, however many there are to pick from."""
    return prod(call.outputs[0])


_move = partial(Rule, family="pointwise", saves="nothing", shape=True)

RULES = {
    "view": _move(_view, sizes=lambda call: _view_names(call)[2]),
    **dict.fromkeys(("permute", "transpose", "t"), _move(_permute)),
    "cat": _move(_cat, maps=_cat_maps, copies=True, joins=True),
    "stack": _move(_stack, sizes=lambda call: {"new": len(call.shapes)}, maps=_stack_maps, copies=True, joins=True),
    "slice": _move(lambda call: _one_mapped(call, [f"x{i}" for i in range(len(call.shapes[0]))]), maps=_slice_maps),
    "select": _move(
        lambda call: _one_mapped(call, [f"x{i}" for i in range(len(call.shapes[0])) if i != call.axis()]),
        maps=_select_maps,
    ),
    "expand": _move(_expand),
    "repeat": _move(_repeat, sizes=_repeat_sizes, copies=True),
    "repeat_interleave": _move(_repeat, sizes=_repeat_sizes, copies=True),
    "constant_pad_nd": Rule(
        _pad,
        family="pointwise",
        maps=lambda call: {f"x{i}": Map((1, -n, 1), (1, -n, 1)) for i, n in _padded_axes(call).items()},
        saves="nothing",
    ),
    "upsample_nearest1d": Rule("*b [length] -> *b length", family="pointwise", maps=_upsample_maps, saves="nothing"),
    "upsample_nearest2d": Rule(
        "*b [height] [width] -> *b height width", family="pointwise", maps=_upsample_maps, saves="nothing"
    ),
    **{
        kind: Rule(f"*b {names} -> *b {wholes}", family="pointwise", flops=_made, saves="nothing")
        for kind, names, wholes in (
            ("upsample_linear1d", "l", "length!"),
            ("upsample_bilinear2d", "h w", "height! width!"),
            ("upsample_bicubic2d", "h w", "height! width!"),
            ("upsample_trilinear3d", "d h w", "depth! height! width!"),
        )
    },
    "index": Rule(_index, family="table", flops=_made, saves="indices"),
    "gather": Rule(_gather, family="table", flops=_made),
    **dict.fromkeys(("scatter", "scatter_add"), Rule(_scatter, family="table", flops=_made, saves="index")),
    "index_add": Rule(_index_add, family="table", flops=_made, slots=("self", "index", "source"), saves="index"),
    "one_hot": Rule("*b -> *b class!", family="pointwise", flops=_made, saves="nothing"),
}
