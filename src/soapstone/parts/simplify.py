"""Makes a recording simpler: fewer casts, views and gradients.

The parts of a segment are written one by one. Several of them cast the same tensor, each for itself, and autograd would
keep every result for backward. Slices of a tensor that do not overlap, such as the halves of a gated layer, would each
have a gradient as large as the tensor; those of a split are put together once.
"""

from __future__ import annotations

import operator
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import torch
from torch import fx

from .frames import Unread

Node = Any  # fx.Node, whose arguments have no types

SHAPE, BYTES, IS_PARAMETER = "shape", "bytes", "is_parameter"  # in a node's meta: its shape, and the bytes of a number
_CASTS = {"_to_copy", "to"}
_VIEWS = {
    *("detach", "expand", "flatten", "getitem", "narrow", "permute", "reshape", "select", "slice", "squeeze"),
    *("t", "transpose", "unflatten", "unsqueeze", "view"),
}


def simplify(graph: fx.Graph) -> None:
    """Compute the same with fewer calls, unless something in the graph changes a tensor."""
    if any(_changes(node) for node in graph.nodes):
        return
    _widen_hulls(graph)
    _drop_whole_slices(graph)
    _make_once(graph)
    graph.eliminate_dead_code()
    _split(graph)
    graph.eliminate_dead_code()


def _widen_hulls(graph: fx.Graph) -> None:
    """Replace padding that nobody reads by a wider slice of the tensor."""
    for node in list(graph.nodes):
        if _name(node) != "pad" or not isinstance(node.kwargs.get("value"), Unread) or _is_put_out(node):
            continue
        source = _unsliced(node.args[0])
        if _name(source) != "narrow" or SHAPE not in source.args[0].meta:
            continue
        (whole, axis, start, length), pads = source.args, node.args[1]
        before, after, shape = pads[-2], pads[-1], whole.meta[SHAPE]
        is_same_axis = axis == len(shape) - len(pads) // 2 and not any(pads[:-2])
        if is_same_axis and before <= start and start + length + after <= shape[axis]:
            with graph.inserting_before(node):
                wider = graph.call_method("narrow", (whole, axis, start - before, length + before + after))
            wider.meta = dict(node.meta)
            node.replace_all_uses_with(wider)


def _drop_whole_slices(graph: fx.Graph) -> None:
    for node in list(graph.nodes):
        if (found := _unsliced(node)) is not node and not _is_output(node):
            node.replace_all_uses_with(found)


def _unsliced(node: Node) -> Node:
    """The tensor itself if the node is a slice of all of it, else the node."""
    if node.target is operator.getitem and isinstance(node.args[1], tuple) and all(map(_is_all, node.args[1])):
        return node.args[0]
    is_narrow = _name(node) == "narrow" and SHAPE in node.args[0].meta
    return node.args[0] if is_narrow and node.args[0].meta[SHAPE] == node.meta.get(SHAPE) else node


def _is_all(index: Any) -> bool:
    return isinstance(index, slice) and index.start in (None, 0) and index.stop is None and index.step in (None, 1)


def _make_once(graph: fx.Graph) -> None:
    """Make each cast and view of a tensor once. A cast to a smaller type stays, unless it is of a parameter: eager
    PyTorch makes one for each op, and adds the gradients in the larger type."""
    first: dict[tuple[str, str, str], Node] = {}
    for node in list(graph.nodes):
        if (_name(node) in _VIEWS or _is_made_once(node)) and not _is_output(node):
            known = first.setdefault((str(node.target), repr(node.args), repr(node.kwargs)), node)
            if known is not node:
                node.replace_all_uses_with(known)


def _is_made_once(node: Node) -> bool:
    if _name(node) not in _CASTS:
        return False
    source = node.all_input_nodes[0].meta
    return IS_PARAMETER in source or node.meta.get(BYTES, 0) > source.get(BYTES, 0)


def _split(graph: fx.Graph) -> None:
    """Slices along an axis that do not overlap become pieces of one split."""
    slices: dict[tuple[Node, int], dict[tuple[int, int], Node]] = defaultdict(dict)
    for node in list(graph.nodes):
        if _name(node) == "narrow" and node.users and SHAPE in node.args[0].meta:
            source, axis, start, length = node.args
            if length > 0:
                slices[source, axis][start, length] = node
    for (source, axis), found in slices.items():
        sizes: list[int] = []
        place = 0
        for start, length in sorted(found):
            sizes += [start - place] * (start > place) + [length]
            place = start + length
        rest = source.meta[SHAPE][axis] - place
        if len(found) < 2 or sum(sizes) != place or min(sizes) < 0:
            continue
        sizes += [rest] * (rest > 0)
        places = [sum(sizes[:i]) for i in range(len(sizes))]
        with graph.inserting_after(source):
            pieces = graph.call_function(torch.split, (source, sizes, axis))
        for (start, _), node in found.items():
            with graph.inserting_before(node):
                piece = graph.call_function(operator.getitem, (pieces, places.index(start)))
            piece.meta = dict(node.meta)
            node.replace_all_uses_with(piece)


def casts_of(graph: fx.Graph, inputs: Iterable[int]) -> list[tuple[Node, Node]]:
    """The casts of some inputs, or of views of them, each after what is cast. Left out are those that the graph puts
    out."""
    placeholders = graph.find_nodes(op="placeholder")
    views = {placeholders[i] for i in inputs}
    found = []
    for node in list(graph.nodes):
        source = node.args[0] if node.args else node.kwargs.get("self")
        if source in views and _name(node) in _VIEWS:
            views.add(node)
        elif source in views and _name(node) in _CASTS and not _is_put_out(node):
            found.append((source, node))
    return found


def _is_put_out(node: Node) -> bool:
    """Whether a tensor, or a view of it, is an output."""
    return _is_output(node) or any(_name(user) in _VIEWS and _is_put_out(user) for user in node.users)


def _is_output(node: Node) -> bool:
    return any(user.op == "output" for user in node.users)


def _changes(node: Node) -> bool:
    name = _name(node)
    return name == "batch_norm" or "out" in node.kwargs or (name.endswith("_") and not name.endswith("__"))


def _name(node: Node) -> str:
    if not isinstance(node, fx.Node) or not node.op.startswith("call"):
        return ""
    target = node.target
    return str(target if isinstance(target, str) else getattr(target, "_opname", getattr(target, "__name__", "")))
