"""Make each cast and view of a tensor once in a recording.

An op that reads a tensor in another type casts it for itself, so a recording of several ops holds the same cast several
times, and autograd would keep each result for backward.
"""

from __future__ import annotations

from torch import fx

_CASTS = {"_to_copy", "to"}
_VIEWS = {
    *("detach", "expand", "flatten", "getitem", "narrow", "permute", "reshape", "select", "slice", "squeeze"),
    *("t", "transpose", "unflatten", "unsqueeze", "view"),
}


def make_once(graph: fx.Graph) -> None:
    """Replace repeated casts and views by the first of them, unless something in the graph changes a tensor."""
    if any(_changes(node) for node in graph.nodes):
        return
    first: dict[tuple[str, str, str], fx.Node] = {}
    (output,) = graph.find_nodes(op="output")
    for node in list(graph.nodes):
        if _name(node) not in _CASTS | _VIEWS or output in node.users:
            continue
        known = first.setdefault((str(node.target), repr(node.args), repr(node.kwargs)), node)
        if known is not node:
            node.replace_all_uses_with(known)
            graph.erase_node(node)


def _changes(node: fx.Node) -> bool:
    name = _name(node)
    return name == "batch_norm" or "out" in node.kwargs or (name.endswith("_") and not name.endswith("__"))


def _name(node: fx.Node) -> str:
    if not node.op.startswith("call"):
        return ""
    target = node.target
    return target if isinstance(target, str) else getattr(target, "_opname", getattr(target, "__name__", ""))
