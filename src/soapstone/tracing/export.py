"""A model and its loss as one graph of torch's, made by torch.export.

The exported graph is read as it is where its few in-place ops can be told apart from their values; functionalising
it, which takes torch longer than the export itself, is left for the models that write to views or cast by autocast.
"""

from __future__ import annotations

import threading
import warnings
from collections import defaultdict
from contextlib import ExitStack
from typing import Any

import torch
from torch import fx, nn

from ..errors import CaptureError
from ..rules import RULES
from .rewrite import REWRITES, SCATTERS
from .workload import Workload

_EXPORTING = threading.Lock()  # torch.export keeps global state, and ranks may be threads
COPIES = {"clone", "alias", "lift_fresh_copy", "contiguous", "detach_"}
_READ_BY_NAME = {*RULES, *REWRITES, *COPIES, "batch_norm", "detach"}
GRAD_REGION, AUTOCAST_REGION = "wrap_with_set_grad_enabled", "wrap_with_autocast"


class _Training(nn.Module):
    def __init__(self, work: Workload) -> None:
        super().__init__()
        self.model = work.model
        self.work = (work,)  # in a tuple, so that the model is registered once

        self.autocasts = [(d, torch.get_autocast_dtype(d)) for d in ("cpu", "cuda") if torch.is_autocast_enabled(d)]

    def forward(self, batch: tuple[torch.Tensor, ...]) -> torch.Tensor:
        with ExitStack() as stack:
            for device, dtype in self.autocasts:  # torch.export sees a region inside, but not one around it
                stack.enter_context(torch.autocast(device, dtype))
            return self.work[0].compute_loss(*batch)


def export(work: Workload) -> torch.export.ExportedProgram:
    """Export a workload. Raises CaptureError where torch.export rejects it."""
    try:
        with _EXPORTING, warnings.catch_warnings(), ExitStack() as stack:
            warnings.simplefilter("ignore")
            training = _Training(work)
            stack.enter_context(torch.autocast("cpu", enabled=False))
            stack.enter_context(torch.autocast("cuda", enabled=False))
            program: torch.export.ExportedProgram = torch.export.export(training, (work.batch,), strict=False)
            if not is_readable(program.graph_module):
                _detach_frozen_regions(program.graph_module)
                program = program.run_decompositions({})
            return program
    except Exception as error:  # whatever a user's model or torch.export raises
        reason = str(error).strip().split("\n")[0] or type(error).__name__
        raise CaptureError(
            f"torch.export rejects {type(work.model).__name__}: {reason}; make its forward free of data-dependent "
            "Python control flow, and check that loss and targets fit its output"
        ) from error


def is_readable(module: fx.GraphModule) -> bool:
    """Whether every call has a meaning of its own: composites that we know, and in-place ops on what no other name
    shows later."""
    sharing: dict[int, list[fx.Node]] = defaultdict(list)
    for node in module.graph.nodes:
        if node.op == "call_function" and not _call_is_readable(module, node, sharing):
            return False
        for storage in _storages(node):
            sharing[storage].append(node)
    return True


def _call_is_readable(module: fx.GraphModule, node: fx.Node, sharing: dict[int, list[fx.Node]]) -> bool:
    target: Any = node.target
    if str(target) in (GRAD_REGION, AUTOCAST_REGION):
        inner = region(module, node)
        if inner is None or any(_changes(n) for n in inner.nodes):
            return False
        return is_readable(inner.owning_module)  # type: ignore[arg-type]
    if not isinstance(target, torch._ops.OpOverload):
        return True
    if _changes(node):
        return counts_steps(node) or _changes_what_it_names(node, sharing)
    known = target._opname in _READ_BY_NAME or torch.Tag.pointwise in target.tags
    return known or not node.all_input_nodes or not target._can_decompose()


def _changes(node: fx.Node) -> bool:
    target = node.target
    return isinstance(target, torch._ops.OpOverload) and target._schema.is_mutable and target._opname not in COPIES


def region(module: fx.GraphModule, node: fx.Node) -> fx.Graph | None:
    """The graph of a no_grad region, or of one that switches autocast off; None where autocast is on."""
    if str(node.target) == AUTOCAST_REGION and node.args[2]:
        return None
    inner: Any = next(a for a in node.args if isinstance(a, fx.Node) and a.op == "get_attr")
    found: fx.Graph = getattr(module, inner.target).graph
    return found


def counts_steps(node: fx.Node) -> bool:
    """Whether a call adds one to a buffer, as batch norm does with the number of its batches."""
    target, source = node.args[0], str(node.target)
    counts = source == "aten.add_.Tensor" and node.args[1:] == (1,) and not node.kwargs
    return counts and isinstance(target, fx.Node) and target.op == "placeholder" and target.name.startswith("b_")


def written(node: fx.Node) -> list[fx.Node]:
    """What an in-place call changes, from the call to the tensor that owns the memory: each is the one before it, or
    the one before it is a slice of it."""
    found = [node]
    target: Any = node
    while _changes(target) or opname(target) in SCATTERS:
        target = target.args[0]
        found.append(target)
    return found if _changes(node) else [node]


def opname(node: fx.Node) -> str:
    target: Any = node.target
    return str(target._opname if isinstance(target, torch._ops.OpOverload) else target)


def functional(target: torch._ops.OpOverload) -> torch._ops.OpOverload | None:
    """`relu` for `relu_`."""
    packet = getattr(torch.ops.aten, target._opname.removesuffix("_"), None)
    found: torch._ops.OpOverload | None = getattr(packet, target._overloadname, None)
    return found


def _changes_what_it_names(node: fx.Node, sharing: dict[int, list[fx.Node]]) -> bool:
    target: Any = node.target
    changed = [a.name for a in target._schema.arguments if a.alias_info is not None and a.alias_info.is_write]
    names = written(node)
    owner = names[-1]
    if changed != ["self"] or functional(target) is None or owner.op != "call_function":
        return False
    if opname(owner) == "dropout":  # its own input, where it drops nothing
        return False
    if any(opname(n) == "slice" and n.args[4:] not in ((), (1,)) for n in names):
        return False
    if len({n.meta["val"].dtype for n in node.all_input_nodes} - {torch.bool}) > 1:
        return False  # in place, the result is cast
    others = {n for storage in _storages(owner) for n in sharing[storage]} - set(names)
    return not any(n.op == "placeholder" or any(node < user for user in n.users) for n in others)


def _storages(node: fx.Node) -> list[int]:
    values = node.meta.get("val")
    values = values if isinstance(values, tuple | list) else [values]
    return [value.untyped_storage()._cdata for value in values if isinstance(value, torch.Tensor)]


def _detach_frozen_regions(module: fx.GraphModule) -> None:
    """What a no_grad region gives out is detached: decomposition inlines the region and forgets that it was one."""
    for node in module.graph.nodes:
        if str(node.target) == GRAD_REGION and node.args[0] is False:
            for result in list(node.users):
                with module.graph.inserting_after(result):
                    detached = module.graph.call_function(torch.ops.aten.detach.default, (result,))
                detached.meta = dict(result.meta)
                result.replace_all_uses_with(detached, delete_user_cb=lambda user, own=detached: user is not own)
    module.recompile()
