"""One model as a list of calls: what torch.export saw, without what no one computes.

Composites such as `linear` and `cross_entropy_loss` stay. What depends on no parameter, input or buffer is folded.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch
from torch import fx
from torch._library.custom_ops import OPDEFS
from torch._subclasses import FakeTensor
from torch.export.graph_signature import InputKind, OutputKind
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode
from torch.fx.node import map_aggregate

from ..errors import CaptureError
from ..graph import Draw
from ..rules import facts_of
from .checkpoints import checkpoint_of
from .choosing import PICKS, leave_out_picked, without_choosing
from .constants import Elements, once
from .export import (
    COPIES,
    GRAD_REGION,
    counts_steps,
    export,
    functional,
    kind_of,
    opname,
    region,
    written,
)
from .precision import Precision
from .rewrite import REWRITES, SCATTERS
from .routing import without_sorting
from .trace import Chosen, Recorder, Trace, TraceCall, TraceValue, meaning
from .users_code import line_in
from .workload import Workload

# What these make depends on no element of their input.
_FACTORIES = {"new_zeros", "new_ones", "new_full", "new_empty", "zeros_like", "ones_like", "full_like", "empty_like"}
_UNSET = {"empty", "new_empty", "empty_like"}  # anything may stand there: zeros do, so that all captures are alike
_BATCH_NORM = "_native_batch_norm_legit_functional"
_FROZEN_BATCH_NORM = "_native_batch_norm_legit_no_training"
_BY_MEMORY = {"aten.as_strided.default", "aten.view.dtype"}
_CHECKS = {"_assert_tensor_metadata", "_assert_async", "_assert_scalar", "sym_constrain_range_for_size"}
_SYMBOLIC = (torch.SymInt, torch.SymBool, torch.SymFloat)
_OF_ONE_TYPE = {"linear", "matmul", "mm", "bmm", "addmm", "baddbmm", "conv1d", "conv2d", "conv3d", "convolution",
                "cross_entropy_loss"}  # fmt: skip
_RESHAPES = {"view", "reshape", "_unsafe_view", "expand"}
_IF_NONE = (
    "what {} does where a mask picks no row is not just to leave those rows out; a loop over experts may pass over one "
    "that no row has chosen, but do nothing else there"
)
_CHOSEN = (
    "how many rows are picked depends on numbers in a tensor{}, and they are not just computed row by row and put "
    "back; compute all rows, and let those that are not meant count nothing: "
    "out = out + expert(x) * (weights * (chosen == e)).sum(-1, keepdim=True)"
)


def trace(
    work: Workload, chunk: int, batch_norm: str, precision: Precision | None, *, any_output: bool = False
) -> Trace:
    """The calls of a workload. Raises CaptureError where it cannot be exported, or the loss is no scalar; `any_output`
    takes another tensor in its place."""
    program, picks, values = export(work, precision)

    def read(program: torch.export.ExportedProgram, nothing: bool = False) -> Trace:
        recorder = Recorder(chunk)
        reader = _Reader(program, work, recorder, batch_norm, any_output or nothing, folds=not nothing)
        return reader.read_without_picked() if nothing else reader.read()

    try:
        found = read(program)
    except GuardOnDataDependentSymNode:
        raise CaptureError(_CHOSEN.format("")) from None
    if picks and not _nothing_is_nothing(read, program, lambda: export(work, precision, some=False).program):
        raise CaptureError(_IF_NONE.format(type(work.model).__name__))
    found.frozen = values
    return found


def _nothing_is_nothing(read: Any, program: Any, without: Callable[[], Any]) -> bool:
    """Whether a model whose masks pick nothing computes what it does when rows that were picked are not put back."""
    try:
        return meaning(read(program, nothing=True)) == meaning(read(without(), nothing=True))
    except Exception:  # what cannot be read without elements is not known to be nothing
        return False


class _Reader:
    """Walks the exported graph once and writes the trace."""

    def __init__(
        self,
        program: torch.export.ExportedProgram,
        work: Workload,
        recorder: Recorder,
        batch_norm: str,
        any_output: bool,
        folds: bool,
    ) -> None:
        self.program, self.work, self.recorder, self.any_output = program, work, recorder, any_output
        self.folds = folds  # what depends on nothing that is given
        self.trace = recorder.trace
        self.kinds = {_BATCH_NORM: "local_batch_norm"} if batch_norm == "local" else {}
        self.value_of: dict[fx.Node, int] = {}
        self.constants: dict[fx.Node, torch.Tensor] = {}
        self.lists: dict[fx.Node, list[int]] = {}  # calls with several outputs
        self.regions: dict[fx.Node, Any] = {}  # what a region gives out
        self.kept: dict[tuple[Any, ...], int] = {}  # constants that are read
        self.picked: dict[Any, int] = {}  # how many rows a symbol in a shape stands for, if a mask picks them all
        self.steps: dict[fx.Node, TraceCall] = {}
        self.buffer_of: dict[fx.Node, str] = {}
        self.parameters: dict[int, int] = {}  # identity of the tensor -> value

    def read(self) -> Trace:
        self._read_nodes()
        without_sorting(self.recorder)
        without_choosing(self.recorder)
        self.recorder.drop_dead()
        self._refuse_chosen()
        self._check_buffers()
        return self.trace

    def _read_nodes(self) -> None:
        signature = self.program.graph_signature
        specs = {spec.arg.name: spec for spec in signature.input_specs}
        for node in self.program.graph.nodes:
            if node.op == "placeholder":
                self._placeholder(node, specs[node.name])
            elif node.op == "call_function":
                self._call(node)
            elif node.op == "output":
                self._outputs(node)

    def read_without_picked(self) -> Trace:
        """The same as if nothing that a mask picks were put back."""
        self._read_nodes()
        leave_out_picked(self.recorder)
        return self.trace

    def _refuse_chosen(self) -> None:
        for value in (v for call in self.trace.calls for v in (*call.inputs, *call.outputs) if v in self.trace.chosen):
            raise CaptureError(_CHOSEN.format(self.trace.chosen[value].line))

    def _check_buffers(self) -> None:
        """A buffer that a step changes is read by the one call that changes it: others would see it change or not,
        depending on where they run."""
        updates = [v for call in self.trace.calls for v, _ in call.updates]
        changed = set(updates)
        if len(changed) < len(updates):
            name = next(self.trace.values[v].name for v in updates if updates.count(v) > 1)
            raise CaptureError(f"{name!r} would change twice; a batch norm may be used only once in a step")
        changed |= {i for i, v in enumerate(self.trace.values) if v.name in self.trace.counters}
        for call in self.trace.calls:
            for value in changed & set(call.inputs) - {v for v, _ in call.updates}:
                name = self.trace.values[value].name
                raise CaptureError(f"the buffer {name!r} changes in each step, but is also read elsewhere; keep a copy")

    def _value(self, node: fx.Node, value: TraceValue) -> int:
        self.value_of[node] = self.recorder.value(value)
        return self.value_of[node]

    def _placeholder(self, node: fx.Node, spec: Any) -> None:
        meta = node.meta["val"]
        described = _described(node.name, meta)
        if spec.kind == InputKind.USER_INPUT:
            described.source = "input"
            self.trace.inputs.append(self._value(node, described))
            return
        name = spec.target.removeprefix("model.")
        if spec.kind == InputKind.PARAMETER:
            self._parameter(node, name, described)
        elif spec.kind == InputKind.BUFFER:
            described.name, described.source = name, "buffer"
            self._value(node, described)
            self.buffer_of[node] = name
        else:
            self.constants[node] = self._given_constant(spec.target)

    def _given_constant(self, target: str) -> torch.Tensor:
        """On the CPU, where all constants are computed. Where export saw a twin of the model, the model has it."""
        found: torch.Tensor = self.program.constants[target]
        if isinstance(found, FakeTensor):
            module, _, name = target.removeprefix("model.").rpartition(".")
            found = getattr(self.work.model.get_submodule(module), name)
        return found.detach().cpu()

    def _parameter(self, node: fx.Node, name: str, described: TraceValue) -> None:
        parameter = self.work.model.get_parameter(name)
        if id(parameter) in self.parameters:
            self.value_of[node] = self.parameters[id(parameter)]
            self.trace.aliases[name] = self.trace.values[self.value_of[node]].name
            return
        described.name, described.source, described.grad = name, "parameter", parameter.requires_grad
        self.parameters[id(parameter)] = self._value(node, described)

    def _call(self, node: fx.Node) -> None:
        if node.target is operator.getitem:
            self._getitem(node)
            return
        kind = opname(node)
        if kind in _CHECKS or isinstance(node.meta.get("val"), _SYMBOLIC):
            return
        if kind == "rand" and not node.users and node.meta["val"].dtype == torch.float32:
            shape = tuple(node.meta["val"].shape)
            self.trace.draws.append(Draw(shape, 0.0, tuple(range(len(shape))), unread=True))
            return
        if kind == GRAD_REGION:
            self._region(node)
            return
        if counts_steps(node):
            self._same(node, node.all_input_nodes[0])
            self.trace.counters.append(self.buffer_of[node.all_input_nodes[0]])
            return
        if str(node.target) in _BY_MEMORY:
            raise CaptureError(f"{node.target} in {_where(node)} depends on how memory is laid out; use another op")
        if not isinstance(node.target, torch._ops.OpOverload):
            raise CaptureError(f"{kind} in {_where(node)} is no tensor operation; capture cannot see inside it")
        if self._is_constant(node, kind):
            self._refuse_randomness(node, {})
            self._fold(node)
        elif kind in COPIES:
            self.value_of[node] = self._input(node.args[0])  # type: ignore[arg-type]
        elif kind == "batch_norm":
            self._batch_norm(node)
        else:
            self._step(node, kind)

    def _batch_norm(self, node: fx.Node) -> None:
        inputs, args = self._arguments(node, node.target)
        self._read_from(node)
        trains = args.pop("training")
        kept = trains and "running_mean" in inputs and self._keeps_statistics(node)
        if trains and not kept:  # what changes is a copy, which nobody reads
            inputs = {name: value for name, value in inputs.items() if not name.startswith("running")}
        kind = self.kinds.get(_BATCH_NORM, _BATCH_NORM) if trains else _FROZEN_BATCH_NORM
        shape = _described(node.name, node.meta["val"]).shape
        self.value_of[node] = self.recorder.emit(kind, inputs, args, shape)[0]
        self.trace.calls[-1].updates = [(inputs["running_mean"], 3), (inputs["running_var"], 4)] if kept else []

    def _keeps_statistics(self, node: fx.Node) -> bool:
        """Whether the running statistics of a batch norm are buffers, not copies of some."""
        own = [given in self.buffer_of for given in node.args[3:5]]
        if any(own) != all(own):
            raise CaptureError(f"of the running statistics in {_where(node)} only one is a buffer; register both")
        return all(own)

    def _region(self, node: fx.Node) -> None:
        """Read the calls of a region as if they stood here; without gradients, none of their values has one."""
        inner = region(node.graph.owning_module, node)  # type: ignore[arg-type]
        given = [n for n in node.all_input_nodes if n.op != "get_attr"]
        trained, self.recorder.grad = self.recorder.grad, self.recorder.grad and node.args[0] is not False
        for n in inner.nodes:
            if n.op == "placeholder":
                self._same(n, given.pop(0))
            elif n.op == "call_function":
                self._call(n)
            elif n.op == "output":
                self.regions[node] = n.args[0]
        self.recorder.grad = trained
        if node.args[0] is False:  # its steps may share an op with trained ones, whose autograd must end here
            for n in {n for n in self.regions[node] if n in self.value_of}:
                inputs, shape = {"self": self.value_of[n]}, self.recorder.shape(self.value_of[n])
                self.value_of[n] = self.recorder.emit("detach", inputs, {}, shape)[0]

    def _same(self, node: fx.Node, other: fx.Node) -> None:
        tables: list[dict[fx.Node, Any]] = [self.value_of, self.constants, self.lists]
        for known in tables:
            if other in known:
                known[node] = known[other]

    def _is_constant(self, node: fx.Node, kind: str) -> bool:
        if facts_of(kind).draws:
            return False
        if kind in _FACTORIES and any(_symbols(n) for n in node.meta["val"].shape):
            raise CaptureError(_CHOSEN.format(_at(node)))
        given = node.all_input_nodes
        return kind in _FACTORIES or (all(n in self.constants for n in given) and (self.folds or not given))

    def _fold(self, node: fx.Node) -> None:
        def real(n: fx.Node) -> torch.Tensor:
            meta = n.meta["val"]
            return self.constants[n] if n in self.constants else torch.empty(meta.shape, dtype=meta.dtype)

        def arguments(given: Any) -> Any:
            """With real tensors, and the CPU for whatever device."""
            there = fx.map_arg(given, real)
            return map_aggregate(there, lambda x: torch.device("cpu") if isinstance(x, torch.device) else x)

        changes = node.target._schema.is_mutable  # type: ignore[union-attr]
        for n in [n for n in self.constants if changes and n in self.value_of]:
            del self.value_of[n]  # read before the change; from now on it is another value
        with torch.no_grad():
            made = node.target(*arguments(node.args), **arguments(node.kwargs))  # type: ignore[operator]
            self.constants[node] = made.zero_() if opname(node) in _UNSET else made

    @staticmethod
    def _refuse_randomness(node: fx.Node, args: dict[str, Any]) -> None:
        """Only dropout's masks are the same on any strategy; other ops may draw only where their dropout is zero."""
        target: Any = node.target
        random = torch.Tag.nondeterministic_seeded in target.tags and not facts_of(opname(node)).draws
        if random and args.get("dropout_p", args.get("dropout")) != 0:
            raise CaptureError(
                f"{opname(node)} in {_where(node)} draws random numbers, which would differ between strategies; "
                "use nn.Dropout, or draw them outside of the model and pass them as an input"
            )

    def _input(self, node: fx.Node) -> int:
        if node not in self.value_of:
            if node not in self.constants:
                raise CaptureError(
                    f"{node.name}, an output of {_where(node)}, is used, but has no rule; a batch norm may be used "
                    "only once in a step, and of a pooling only its values"
                )
            constant = _constant(node.name, self.constants[node])
            same = (constant.shape, constant.dtype, constant.fill, constant.data)
            if same not in self.kept:
                self.kept[same] = self.recorder.value(constant)
            self.value_of[node] = self.kept[same]
        return self.value_of[node]

    def _step(self, node: fx.Node, kind: str) -> None:
        target: Any = node.target
        if target._schema.is_mutable:
            target = functional(target)
            if target is None:
                raise CaptureError(f"{kind} in {_where(node)} writes to its inputs, and has no twin that does not")
            kind = kind_of(target)
        inputs, args = self._arguments(node, target)
        types = sorted(
            {self.recorder.dtype(value) for value in inputs.values() if "float" in self.recorder.dtype(value)}
        )
        if kind in _OF_ONE_TYPE and len(types) > 1:  # torch.export does not look
            raise CaptureError(
                f"{kind} in {_where(node)} is given both {' and '.join(types)}, which PyTorch refuses; cast one of "
                "them, such as a buffer"
            )
        if kind == "instance_norm" and node.args[3] is not None and node.args[5]:
            raise CaptureError(
                f"the instance norm in {_where(node)} tracks running statistics, which has no rule; make it with "
                "track_running_stats=False"
            )
        several = isinstance(node.meta["val"], tuple | list)
        metas = node.meta["val"] if several else [node.meta["val"]]
        facts = facts_of(kind)
        self._learn_sizes(node, kind, metas)
        if facts.draws:
            stride = node.all_input_nodes[0].meta["val"].stride()
            args["order"] = sorted(range(len(stride)), key=lambda axis: -stride[axis])
        self._read_from(node)
        rewrite = REWRITES.get(kind)
        shapes = self._shapes(metas)
        outputs = rewrite(self.recorder, inputs, args, shapes) if rewrite else None
        if outputs is None:
            self._refuse_randomness(node, args)
            if any(self.trace.values[value].grad for value in inputs.values()):
                _refuse_dead_end(target, node)
            metas = metas[: facts.num_outputs]
            outputs = self.recorder.emit(
                self.kinds.get(kind, kind),
                inputs,
                args,
                *shapes[: facts.num_outputs],
                overload=target._overloadname,
                pointwise=torch.Tag.pointwise in target.tags,
                dtypes=[_dtype(meta) for meta in metas],
            )
            self.steps[node] = self.trace.calls[-1]
        for value, meta in zip(outputs, metas):
            axes = [axis for axis, n in enumerate(meta.shape) if isinstance(n, torch.SymInt)]
            if axes:
                single = len(axes) == 1 and meta.shape[axes[0]].node.expr in self.picked
                self.trace.chosen[value] = Chosen(_at(node), axes[0] if single else None)
        if several:
            self.lists[node] = outputs
            return
        self._write(written(node), outputs[0])

    def _learn_sizes(self, node: fx.Node, kind: str, metas: Any) -> None:
        """Where a mask picks rows, take it that it picks all."""
        masks: Any = node.args[1] if kind == "index" else node.args[:1] if kind in PICKS else ()
        for mask in (mask.meta["val"] for mask in masks if mask is not None):
            for symbol in {s for meta in metas for n in meta.shape for s in _symbols(n)} - self.picked.keys():
                if kind != "index" or mask.dtype == torch.bool:
                    self.picked[symbol] = mask.numel()

    def _shapes(self, metas: Any) -> list[tuple[int, ...]]:
        return [tuple(self._size(n) for n in meta.shape) for meta in metas]

    def _size(self, given: Any) -> int:
        known = _symbols(given) <= self.picked.keys()
        return int(given.node.expr.xreplace(self.picked)) if known and _symbols(given) else int(given)

    def _read_from(self, node: fx.Node) -> None:
        self.recorder.name, self.recorder.module = node.name, _module_path(node)
        self.recorder.checkpoint = checkpoint_of(node)

    def _write(self, names: list[fx.Node], value: int) -> None:
        """Give a call its value. One that works in place changes whatever its target is a slice of, too."""
        self.value_of[names[0]] = value
        for part, target in pairwise(names):
            if opname(part) in SCATTERS:
                inputs, args = self._arguments(part, part.target)
                shape = self.recorder.shape(inputs["self"])
                found = SCATTERS[opname(part)](self.recorder, inputs | {"src": value}, args, [shape])
                assert found is not None
                value = found[0]
            self.value_of[target] = value
            self.constants.pop(target, None)

    def _getitem(self, node: fx.Node) -> None:
        source: Any = node.args[0]
        index: Any = node.args[1]
        if source in self.regions:
            self._same(node, self.regions[source][index])
        elif source in self.constants:
            self.constants[node] = self.constants[source][index]
        elif index < len(self.lists[source]):
            self.value_of[node] = self.lists[source][index]

    def _arguments(self, node: fx.Node, target: Any) -> tuple[dict[str, int], dict[str, Any]]:
        """The values by slot ("weight", or "tensors.0" in a list), and the other arguments by their names in `target`,
        which is the node's or its functional twin."""
        inputs: dict[str, int] = {}
        args: dict[str, Any] = {}
        joins = facts_of(kind_of(target)).joins  # torch leaves out what has no elements
        for i, argument in enumerate(target._schema.arguments):
            given = node.args[i] if i < len(node.args) else node.kwargs.get(argument.name, argument.default_value)
            given = fx.map_arg(given, lambda n: self._sized(n, node))
            if isinstance(given, fx.Node):
                inputs[argument.name] = self._input(given)
            elif isinstance(given, list | tuple) and any(isinstance(item, fx.Node) for item in given):
                for k, item in enumerate(given):
                    if item is not None and not (joins and item.meta["val"].numel() == 0):
                        inputs[f"{argument.name}.{k}"] = self._input(item)
            else:
                args[argument.name] = _plain(given)
        return inputs, args

    def _sized(self, given: fx.Node, reader: fx.Node) -> Any:
        """A size as a number, where it is one of a shape."""
        if not isinstance(given.meta.get("val"), _SYMBOLIC):
            return given
        if opname(reader) not in _RESHAPES:
            raise CaptureError(_CHOSEN.format(_at(reader)))
        return self._size(given.meta["val"])

    def _outputs(self, node: fx.Node) -> None:
        for spec, result in zip(self.program.graph_signature.output_specs, node.args[0]):  # type: ignore[arg-type]
            if spec.kind == OutputKind.USER_OUTPUT:
                self._loss(result)
            elif spec.kind == OutputKind.BUFFER_MUTATION:
                self._mutation(result, (spec.target or "").removeprefix("model."))
            else:
                raise CaptureError(f"the model writes to {spec.target}, which is no buffer; keep such state outside")

    def _loss(self, node: Any) -> None:
        if self.trace.loss >= 0:
            raise CaptureError("the loss must be one scalar tensor, not several values; pass a loss= that returns one")
        meta = node.meta["val"] if isinstance(node, fx.Node) else None
        if meta is not None and self.any_output:
            self.trace.loss = self._input(node)
            return
        if meta is None or meta.ndim != 0 or not meta.dtype.is_floating_point:
            found = "no tensor" if meta is None else f"{meta.dtype} of shape {list(meta.shape)}"
            raise CaptureError(f"the loss must be a scalar tensor, not {found}; reduce it, e.g. with .mean()")
        if node not in self.value_of or not self.trace.values[self.value_of[node]].grad:
            raise CaptureError("the loss depends on no trainable parameter; check requires_grad and the loss")
        self.trace.loss = self.value_of[node]

    def _mutation(self, node: fx.Node, buffer: str) -> None:
        source: Any = node.args[0] if node.args else None
        if node.target is operator.getitem and source in self.steps:
            value = next(i for i, v in enumerate(self.trace.values) if v.source == "buffer" and v.name == buffer)
            self.steps[source].updates.append((value, node.args[1]))  # type: ignore[arg-type]
        elif opname(node) == "add" and source in self.buffer_of and node.args[1:] == (1,) and not node.kwargs:
            self.trace.counters.append(buffer)
        else:
            raise CaptureError(f"the model changes its buffer {buffer!r} in a way that has no rule; keep it constant")


def _refuse_dead_end(target: Any, node: fx.Node) -> None:
    """An op of somebody's own that gradients cannot pass."""
    known = OPDEFS.get(f"{target.namespace}::{target._opname}")
    if known is not None and known._backward_fn is None:
        name = kind_of(target)
        raise CaptureError(
            f"{name} in {_where(node)} has no backward; give it one by register_autograd, or detach its inputs"
        )


def _at(node: fx.Node) -> str:
    line = line_in(node)
    return f" ({line})" if line else ""


def _symbols(size: Any) -> set[Any]:
    return set(size.node.expr.free_symbols) if isinstance(size, torch.SymInt) else set()


def _dtype(meta: torch.Tensor) -> str:
    return str(meta.dtype).removeprefix("torch.")


def _described(name: str, meta: torch.Tensor) -> TraceValue:
    return TraceValue(name, tuple(int(n) for n in meta.shape), _dtype(meta))


def _constant(name: str, tensor: torch.Tensor) -> TraceValue:
    value = _described(name, tensor)
    value.source = "constant"
    if not tensor.numel():
        raise CaptureError(f"the constant {name!r} of shape {list(tensor.shape)} has no elements")
    tensor = tensor.detach().cpu()
    flat = once(tensor).reshape(-1)
    exact = value.dtype != "int64" or abs(int(flat[0])) < 2**53  # a fill is kept as a float
    if exact and bool((flat == flat[0]).all()):
        value.fill = float(flat[0])
    else:
        value.data = Elements.of(tensor)
    return value


def _plain(value: Any) -> Any:
    """Arguments as JSON has them; where a tensor is stored is not the graph's business."""
    if isinstance(value, torch.dtype):
        return str(value)
    if isinstance(value, torch.device | torch.layout | torch.memory_format):
        return None
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise CaptureError(f"the argument {value!r} of an op is of a type that a graph cannot hold")


def _where(node: fx.Node) -> str:
    return f"module {_module_path(node)!r}" if _module_path(node) else "the model"


def _module_path(node: fx.Node) -> str:
    stack = node.meta.get("nn_module_stack") or {}
    paths = [path for path, _ in stack.values()]
    return paths[-1].removeprefix("model").removeprefix(".") if paths else ""
