"""Looks in an exported graph for casts that autocast would have made but that Python code does not see, since the call
is inside an op that is written in C++."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx
from torch._C._functorch import is_batchedtensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from ..errors import CaptureError
from .autocast import autocast_of, is_cast, rules_of
from .precision import Autocast
from .users_code import at, line_in


def check_casts(module: fx.GraphModule) -> None:
    """Raise CaptureError if an op that was called under autocast computes in another type than it does in eager
    PyTorch."""
    known: dict[object, str | None] = {}
    for inner in module.modules():
        for node in inner.graph.nodes if isinstance(inner, fx.GraphModule) else ():
            autocast = autocast_of(node)
            if autocast is None or not isinstance(node.target, torch._ops.OpOverload):
                continue
            values = fx.map_arg((node.args, node.kwargs), lambda n: n.meta.get("val"))
            if any(is_batchedtensor(x) for x in tree_leaves(values) if isinstance(x, torch.Tensor)):
                continue  # of a vmap that has ended
            key = node.target, str(autocast), tuple(x.dtype for x in tree_leaves(values) if isinstance(x, torch.Tensor))
            if key not in known:
                known[key] = _uncast(node.target, *values, autocast)
            if known[key] is not None:
                raise CaptureError(
                    f"autocast would cast {known[key]} inside {node.target}, which capture cannot follow"
                    f"{at(line_in(node))}; write it with other ops, or in a region of torch.autocast with enabled=False"
                )


def _uncast(target: torch._ops.OpOverload, args: Any, kwargs: Any, autocast: Autocast) -> str | None:
    """The op, itself or inside of it, that gets tensors of another type than autocast would give it."""
    kinds = rules_of(autocast.device).kinds
    if kinds.get(target._opname, "product") != "product":
        return target._opname if _differs(kinds[target._opname], (args, kwargs), autocast) else None
    if not target._can_decompose():
        return None
    found: list[str] = []

    class Look(TorchDispatchMode):  # type: ignore[no-untyped-call]
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            name = func._opname
            if name not in kinds:  # a kernel of an op that is listed by the other name
                name = name.removeprefix("_").removesuffix("_forward")
            if name in kinds and _differs(kinds[name], (args, kwargs), autocast):
                found.append(name)
            return func(*args, **(kwargs or {}))

    with Look():  # type: ignore[no-untyped-call]
        target(*args, **kwargs)
    return found[0] if found else None


def _differs(kind: str, given: Any, autocast: Autocast) -> bool:
    types = {x.dtype for x in tree_leaves(given) if is_cast(x)}
    if kind in ("lower", "product"):
        return bool(types - {autocast.dtype})
    if kind == "unknown":
        return bool(types)
    if kind == "promote":
        return len(types) > 1
    if kind == "dtype" and any(isinstance(each, torch.dtype) for each in tree_leaves(given)):
        return False
    return kind in ("float32", "dtype") and bool(types - {torch.float32})
