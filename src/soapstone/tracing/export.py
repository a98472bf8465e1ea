"""A model and its loss as one graph of torch's, made by torch.export.

The exported graph is read as it is where its few in-place ops can be told apart from their values; functionalising
it, which takes torch longer than the export itself, is left for the models that write to views.
"""

from __future__ import annotations

import logging
import operator
import threading
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, redirect_stderr
from dataclasses import dataclass, field
from functools import cache
from io import StringIO
from typing import Any, NamedTuple

import torch
from torch import fx, nn
from torch._subclasses import FakeTensor
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from ..errors import CaptureError
from ..rules import RULES
from .autocast import Casts, casting
from .change_lines import OUTSIDE, changing, line_that_changes, settling
from .checkpoints import marked_checkpoints
from .clocks import at_another_time
from .frozen import Scalar, values_read
from .observe import Observer, own_roots
from .precision import DEVICE_TYPES, Autocast, Mixed, Precision, device_type, lowered
from .pystate import Change, Snapshot
from .repeats import marked_call, repeats, same_loss
from .rewrite import REWRITES, SCATTERS
from .uncast import check_casts
from .unseen import DEPENDS, Picks, decided_chances, kept_random_state, refused_draws, refused_functions
from .users_code import Line, line_of
from .workload import Workload

_EXPORTING = threading.Lock()  # torch.export keeps global state, and ranks may be threads
COPIES = {"clone", "alias", "lift_fresh_copy", "contiguous", "detach_"}
_READ_BY_NAME = {*RULES, *REWRITES, *COPIES, "batch_norm", "instance_norm"}
GRAD_REGION = "wrap_with_set_grad_enabled"


@dataclass
class _Found:
    """What was observed in a call of the model: its Python code, and the state that it changed."""

    changes: list[Change] = field(default_factory=list)
    observer: Observer | None = None

    @property
    def clock(self) -> Line | None:
        """The line that read one."""
        return self.observer.clock if self.observer is not None else None


class _Training(nn.Module):
    """A model with its loss. Python state that the forward changes is put back after each call. Given a second batch,
    the model is called twice, and what the second call changes is refused; given a change, what makes it. Given plain
    values that a call has settled on, it is called with these."""

    def __init__(
        self,
        work: Workload,
        precision: Precision | None,
        picks: Picks,
        refused: Change | None = None,
        settled: Sequence[Change] = (),
    ) -> None:
        super().__init__()
        self.picks = (picks,)
        self.model = work.model
        self.work = (work,)  # in a tuple, so that the model is registered once
        self.precision, self.own = precision, device_type(work)
        self.found = (_Found(),)
        self.refused = (refused,)
        self.settled = (settled,)

    def forward(self, batch: tuple[torch.Tensor, ...], again: tuple[torch.Tensor, ...] | None = None) -> Any:
        found, observer = self.found[0], Observer(self.work[0])
        found.observer, before = observer, observer.before
        try:
            for change in self.settled[0]:
                change.repeat(before)
            if (refused := self.refused[0]) is not None:
                raise CaptureError(settling(refused, line_that_changes(refused, lambda: self._loss(batch))))
            if again is None:
                return self._loss(batch, observer)
            with marked_call(0):
                loss = self._loss(batch, observer)
            return loss, self._second(again, observer)
        finally:
            found.changes = before.changes(Snapshot(observer.roots))
            before.restore()

    def _second(self, batch: tuple[torch.Tensor, ...], observer: Observer) -> torch.Tensor:
        between = observer.before = Snapshot(observer.roots)
        with marked_call(1), at_another_time(observer.codes.values()):
            loss = self._loss(batch, observer)
        for change in between.changes(Snapshot(observer.roots)):
            between.restore()
            raise CaptureError(changing(change, line_that_changes(change, lambda: self._loss(batch))))
        between.restore()
        return loss

    def _loss(self, batch: tuple[torch.Tensor, ...], observer: Observer | None = None) -> torch.Tensor:
        work, asked = self.work[0], self.precision
        casts = Casts(asked if isinstance(asked, Autocast) else None, self.own)
        model = lowered(work.model) if isinstance(asked, Mixed) else None
        with casting(casts), _Watch(), self.picks[0], observer or nullcontext():
            return work.compute_loss(*batch, model=model)


class _Watch(TorchFunctionMode):
    """Looks for what torch.export drops without a word: trained tensors of no module."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        for tensor in tree_leaves((args, kwargs)):
            if isinstance(tensor, torch.Tensor) and not isinstance(tensor, FakeTensor) and tensor.requires_grad:
                shape = list(tensor.shape)
                raise CaptureError(f"a trained tensor of shape {shape} is no parameter of the model; register it there")
        return func(*args, **(kwargs or {}))


@contextmanager
def _quiet() -> Iterator[None]:
    """torch logs at length what our one sentence says."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with redirect_stderr(StringIO()):
            yield
    finally:
        logging.disable(before)


def _drop_idle_dropout(graph: fx.Graph) -> None:
    """Dropout that drops nothing is its own input, by another name."""
    for node in list(graph.nodes):
        if opname(node) in ("dropout", "dropout_") and (not node.args[2] or node.args[1] == 0):
            node.replace_all_uses_with(node.args[0])
            graph.erase_node(node)


def _refuse_hidden_writes(module: fx.GraphModule) -> None:
    """Writes that autograd does not see: inside no_grad to what lies outside, or to what was detached; and those that
    torch does not see, to what an op such as einsum gave back as a view without saying so."""
    detached: set[int] = set()
    unsaid: set[int] = set()
    for node in module.graph.nodes:
        if str(node.target) == GRAD_REGION:
            inner = region(module, node)
            given = {storage for n in inner.nodes if n.op == "placeholder" for storage in _storages(n)}
            hidden = any(_changes(n) and given & set(_storages(n)) for n in inner.nodes)
            if hidden and node.args[0] is False:
                raise CaptureError(
                    "the model writes in place, inside no_grad, to a tensor from outside; make a new one"
                )
        if opname(node) == "detach":
            detached |= set(_storages(node))
        taken = opname(node) == "detach_" and opname(node.args[0]) != "lift_fresh_copy"
        if taken or (_changes(node) and detached & set(_storages(node))):
            raise CaptureError(f"{opname(node)} changes a detached tensor in place; work on a clone of it")
        if _changes(node) and unsaid & set(_storages(node)):
            raise CaptureError(f"{opname(node)} changes what einsum or meshgrid shows, too; work on a clone of it")
        target = node.target
        if isinstance(target, torch._ops.OpOverload) and not any(r.alias_info for r in target._schema.returns):
            unsaid |= set(_storages(node)) & {storage for n in node.all_input_nodes for storage in _storages(n)}


def _distinct(batch: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    """The same values, no tensor twice: torch.export takes inputs that are one object for one input."""
    return tuple(x.clone() if any(x is other for other in batch[:i]) else x for i, x in enumerate(batch))


class Export(NamedTuple):
    """A workload's program, whether it picks rows by a mask, and the Python values that it has read."""

    program: torch.export.ExportedProgram
    picks: bool
    read: dict[str, Scalar]


def export(work: Workload, precision: Precision | None, some: bool = True) -> Export:
    """Export a workload, as if all masks that pick rows pick `some`, or as if they pick none. Raises CaptureError if
    torch.export rejects it, or if a second call would not compute the same as the first."""
    picks = Picks(some)
    try:
        with _EXPORTING, warnings.catch_warnings(), ExitStack() as stack:
            warnings.simplefilter("ignore")
            for device in DEVICE_TYPES:
                stack.enter_context(torch.autocast(device, enabled=False))
            stack.enter_context(_quiet())
            stack.enter_context(marked_checkpoints())
            stack.enter_context(refused_functions())
            stack.enter_context(decided_chances())
            stack.enter_context(kept_random_state())
            stack.enter_context(refused_draws())
            program, read = _exported(work, precision, picks)
            _drop_idle_dropout(program.graph)
            _refuse_hidden_writes(program.graph_module)
            check_casts(program.graph_module)
            if picks.asked or not is_readable(program.graph_module):
                _detach_frozen_regions(program.graph_module)
                program = program.run_decompositions(_unread_composites())
            return Export(program, picks.asked, read)
    except CaptureError:
        raise
    except Exception as error:  # whatever a user's model or torch.export raises
        raise CaptureError(_sentence(error, type(work.model).__name__)) from error


def _sentence(error: Exception, model: str) -> str:
    reason = str(error).strip().split("\n")[0] or type(error).__name__
    line = line_of(error.__traceback__)
    where = f" ({line})" if line else ""
    if isinstance(error, GuardOnDataDependentSymNode) or "data-dependent" in reason:
        return DEPENDS.format(model, where)
    return f"torch.export rejects {model}: {reason}{where}; check that loss and targets fit its output"


def _exported(
    work: Workload, precision: Precision | None, picks: Picks
) -> tuple[torch.export.ExportedProgram, dict[str, Scalar]]:
    training = _Training(work, precision, picks)
    found = training.found[0]
    try:
        program = _export(training)
    except CaptureError:
        raise
    except Exception:  # state that changes is the better reason
        _check_repeats(training)
        raise
    _check_repeats(training, program)
    assert found.observer is not None
    return program, values_read(found.observer, work)


def _export(training: _Training, again: bool = False) -> torch.export.ExportedProgram:
    work = training.work[0]
    batch = _distinct(work.batch)
    batches = (batch, tuple(torch.empty_like(x) for x in batch)) if again else (batch,)
    state = Snapshot(own_roots(work), copies=True)
    try:
        found: torch.export.ExportedProgram = torch.export.export(training, batches, strict=False)
        return found
    finally:
        state.restore()  # torch.export leaves copies in place of dicts and lists


def _settles(training: _Training, program: torch.export.ExportedProgram) -> bool:
    """Whether the first call only set plain values of the model, and another call with these values sets them again and
    computes the same. This takes one more export of one call, which is cheaper than an export of two calls."""
    found, work = training.found[0], training.work[0]
    if found.clock is not None or not all(change.is_plain for change in found.changes):
        return False
    later = _Training(work, training.precision, Picks(training.picks[0].some), settled=found.changes)
    try:
        again = _export(later)
    except Exception:  # the export of two calls says why
        return False
    changes = later.found[0].changes
    as_before = all(c.is_plain for c in changes) and _values(changes) == _values(found.changes)
    return as_before and same_loss(program, again, len(work.batch))


def _values(changes: list[Change]) -> dict[str, Any]:
    return {change.path: change.now for change in changes}


def _check_repeats(training: _Training, program: torch.export.ExportedProgram | None = None) -> None:
    """Raise CaptureError if the first call changed Python state, or read a clock, and the second call changes it again
    or computes something else."""
    found, work = training.found[0], training.work[0]
    if not found.changes and found.clock is None:
        return
    if program is not None and _settles(training, program):
        return
    some = training.picks[0].some
    twice = _export(_Training(work, training.precision, Picks(some)), again=True)
    if repeats(twice, len(work.batch)):
        return
    if not found.changes:
        raise CaptureError(
            f"the model computes with the time ({found.clock}), which would always be that of the capture; {OUTSIDE}"
        )
    _export(_Training(work, training.precision, Picks(some), found.changes[0]))


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
    if str(target) == GRAD_REGION:
        inner = region(module, node)
        if any(_changes(n) for n in inner.nodes):
            return False
        return is_readable(inner.owning_module)  # type: ignore[arg-type]
    if isinstance(node.meta.get("val"), torch.SymInt | torch.SymBool):
        return True  # a size, which no one reads but checks and reshapes
    if not isinstance(target, torch._ops.OpOverload):
        return target is operator.getitem
    if _changes(node):
        return counts_steps(node) or _changes_what_it_names(node, sharing)
    known = target._opname in _READ_BY_NAME or torch.Tag.pointwise in target.tags
    return known or not node.all_input_nodes or not target._can_decompose()


@cache
def _unread_composites() -> dict[torch._ops.OperatorBase, Callable[..., Any]]:
    """What the ops are made of that torch composes of others, and that are not known by name."""
    table = torch.export.default_decompositions()
    composed = "CompositeImplicitAutograd"
    return {
        op: table[op]
        for op in table
        if isinstance(op, torch._ops.OpOverload)
        and op._opname not in _READ_BY_NAME
        and torch._C._dispatch_has_kernel_for_dispatch_key(op.name(), composed)  # type: ignore[no-untyped-call]
    }


def _changes(node: fx.Node) -> bool:
    target = node.target
    return isinstance(target, torch._ops.OpOverload) and target._schema.is_mutable and target._opname not in COPIES


def region(module: fx.GraphModule, node: fx.Node) -> fx.Graph:
    """The graph of a no_grad region."""
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
    return kind_of(node.target)


def kind_of(target: Any) -> str:
    """An op's name, with its namespace where that is not torch's own."""
    if not isinstance(target, torch._ops.OpOverload):
        return str(target)
    return target._opname if target.namespace == "aten" else f"{target.namespace}::{target._opname}"


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
    if not _twin_agrees(node):
        return False
    if any(opname(n) == "slice" and n.args[4:] not in ((), (1,)) for n in names):
        return False
    if len({n.meta["val"].dtype for n in node.all_input_nodes} - {torch.bool}) > 1:
        return False  # in place, the result is cast
    others = {n for storage in _storages(owner) for n in sharing[storage]} - set(names)
    return not any(n.op == "placeholder" or any(node < user for user in n.users) for n in others)


def _twin_agrees(node: fx.Node) -> bool:
    """Whether the op's functional twin, on the same arguments, gives the same kind of tensor."""
    twin: Any = functional(node.target)  # type: ignore[arg-type]
    if torch.Tag.pointwise not in twin.tags and twin._opname not in ("copy", "fill", "dropout"):
        return False
    value = node.meta["val"]
    args, kwargs = fx.map_arg((node.args, node.kwargs), lambda n: n.meta["val"])
    try:
        with value.fake_mode:
            found = twin(*args, **kwargs)
    except Exception:  # the twin takes other arguments
        return False
    return (found.dtype, found.shape) == (value.dtype, value.shape)


def _storages(node: fx.Node) -> list[int]:
    values = node.meta.get("val")
    values = values if isinstance(values, tuple | list) else [values]
    return [value.untyped_storage()._cdata for value in values if isinstance(value, FakeTensor)]


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
