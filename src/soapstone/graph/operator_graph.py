"""The operator graph: ops in order, the tensors between them, and its file."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from .. import _core
from ..errors import GraphError, meant
from ..files import checksum_of, decode, encode, is_whole, read_json, shortened, write_atomically
from .facts import Facts, facts_of
from .ops import ITEM_SIZES, Combine, Draw, Op, Settings, Tensor
from .storages import CAST, Casts, storages

FORMAT = 4


_SOURCES = {
    "op": _core.Source.op,
    "input": _core.Source.input,
    "constant": _core.Source.input,
    "parameter": _core.Source.parameter,
    "buffer": _core.Source.parameter,  # shards, trained or not
}


@dataclass(frozen=True)
class OperatorGraph:
    tensors: tuple[Tensor, ...]
    ops: tuple[Op, ...]
    inputs: tuple[int, ...]  # the tensors that `step` takes, in order
    loss: int
    settings: Settings = field(default_factory=Settings)
    aliases: dict[str, str] = field(default_factory=dict, hash=False)  # tied name -> the name kept
    counters: tuple[str, ...] = ()  # buffers that count steps
    draws: tuple[Draw, ...] = ()  # in eager order; a step's "draw" is its place here
    frozen: dict[str, Any] = field(default_factory=dict, compare=False)  # Python values that forward read, by path

    def __repr__(self) -> str:
        return f"OperatorGraph({len(self.ops)} ops, {len(self.parameters)} parameters, {self.fingerprint})"

    @cached_property
    def _index(self) -> dict[str, int]:
        return {op.name: i for i, op in enumerate(self.ops)}

    def __contains__(self, name: object) -> bool:
        return name in self._index

    def index(self, name: str) -> int:
        """The op's place in `ops`. Raises GraphError for an unknown name."""
        if name not in self._index:
            remedy = meant(name, self._index, f"it has {', '.join(list(self._index)[:8])}, ...")
            raise GraphError(f"the graph has no op {name!r}; {remedy}")
        return self._index[name]

    def op(self, name: str) -> Op:
        return self.ops[self.index(name)]

    def __str__(self) -> str:
        return f"{self.facts}\n" + "\n".join(f"  {op}" for op in self.ops)

    @property
    def num_samples(self) -> int:
        """Of a batch; 1 where no input has any."""
        axes = zip(self.inputs, self.settings.batch_dims)
        return next((self.tensors[tensor].shape[axis] for tensor, axis in axes if axis is not None), 1)

    @cached_property
    def has_batch_norm(self) -> bool:
        """Whether samples share statistics."""
        return any("batch_norm" in step.kind for op in self.ops for step in op.steps)

    @cached_property
    def cuts(self) -> dict[int, OperatorGraph]:
        """The graphs of its microbatches that were asked for so far, by how many there are."""
        return {}

    @cached_property
    def facts(self) -> Facts:
        """Sizes and flops of the whole graph, and what of it has no rule."""
        return facts_of(self.ops, self.tensors)

    @property
    def unruled(self) -> tuple[str, ...]:
        """The kinds without a rule, which stay whole."""
        return tuple(self.facts.unruled)

    @property
    def parameters(self) -> tuple[Tensor, ...]:
        return tuple(t for t in self.tensors if t.source == "parameter")

    @cached_property
    def read_types(self) -> tuple[str, ...]:
        """By tensor, the type in which it is used: that of a cast, where all who read it cast it first to the same."""
        found: dict[int, set[str]] = {}
        for op in self.ops:
            for operand in op.inputs:
                for step in op.steps:
                    if operand.value in step.inputs:
                        value = op.values[step.outputs[0] if step.kind == CAST else operand.value]
                        found.setdefault(operand.tensor, set()).add(value.dtype)
        return tuple(
            min(types) if len(types := found.get(i, set())) == 1 and tensor.source == "parameter" else tensor.dtype
            for i, tensor in enumerate(self.tensors)
        )

    @cached_property
    def trains(self) -> tuple[tuple[int, ...], ...]:
        """By op, the numbers of the trained parameters that it reads."""
        trained = {i for i, tensor in enumerate(self.tensors) if tensor.source == "parameter" and tensor.grad}
        return tuple(tuple(o.tensor for o in op.inputs if o.tensor in trained) for op in self.ops)

    @cached_property
    def sharers(self) -> tuple[tuple[int, ...], ...]:
        """The ops that train parameters, those together that share one, by whatever others."""
        groups: dict[int, list[int]] = {}  # by parameter
        for index, parameters in enumerate(self.trains):
            joined = {id(groups[p]): groups[p] for p in parameters if p in groups}
            group = sorted([index, *(op for ops in joined.values() for op in ops)])
            groups |= dict.fromkeys({*parameters, *(p for op in group for p in self.trains[op])}, group)
        return tuple(sorted({tuple(group) for group in groups.values()}))

    @cached_property
    def alike(self) -> tuple[int, ...]:
        """By op, the first op that does the same on tensors of the same sizes; only its place in the graph differs."""
        first: dict[Any, int] = {}
        return tuple(first.setdefault(self._signature(op), i) for i, op in enumerate(self.ops))

    def _signature(self, op: Op) -> Any:
        read = tuple((o.value, self.tensors[o.tensor].source, self.tensors[o.tensor].grad) for o in op.inputs)
        written = tuple(o.value for o in op.outputs)
        return op.dims, op.values, op.steps, op.head, op.backward, op.saved, op.extra, read, written

    def signature(self, index: int) -> str:
        """A hash of the work that an op does, the same in other graphs and processes: less than what tells it from
        others that are not `alike`."""
        if index not in self._signatures:
            text = json.dumps(_without_places(encode(self._signature(self.ops[index]))), sort_keys=True)
            self._signatures[index] = hashlib.sha256(text.encode()).hexdigest()[:32]
        return self._signatures[index]

    @cached_property
    def readers(self) -> Counter[int]:
        """How many inputs of ops each tensor is."""
        return Counter(operand.tensor for op in self.ops for operand in op.inputs)

    @cached_property
    def _signatures(self) -> dict[int, str]:
        return {}

    @cached_property
    def fingerprint(self) -> str:
        data = {key: item for key, item in encode(self).items() if key != "frozen"}
        text = json.dumps(data, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    @cached_property
    def producer(self) -> dict[int, int]:
        """The op that makes each tensor, by number; inputs and parameters have none."""
        return {operand.tensor: index for index, op in enumerate(self.ops) for operand in op.outputs}

    @cached_property
    def native(self) -> _core.Graph:
        """The core's own copy. Raises GraphError where the graph does not hold together."""
        try:
            return _build_native(self)
        except ValueError as error:
            raise GraphError(str(error)) from None

    def save(self, path: str | Path) -> None:
        """Write the graph as JSON; `load` needs neither the model nor torch."""
        write_atomically(path, json.dumps(self.to_data()))

    @classmethod
    def load(cls, path: str | Path) -> OperatorGraph:
        """Read a saved graph. Raises GraphError that names what is wrong with the file."""
        return cls.from_data(read_json(path), str(path))

    def to_data(self) -> dict[str, Any]:
        """The graph as JSON, with a checksum, because nothing else would notice a wrong number in it."""
        data = {"format": FORMAT, "kind": "soapstone graph", **encode(self)}
        return {**data, "checksum": checksum_of(data)}

    @classmethod
    def from_data(cls, data: Any, where: str) -> OperatorGraph:
        """The inverse of `to_data`. Raises GraphError that names what is wrong; `where` says whose data they are."""
        if not isinstance(data, dict) or data.get("kind") != "soapstone graph":
            raise GraphError(f"{where} is not a saved graph; write one with graph.save(path)")
        if (found := data.get("format")) != FORMAT:
            said = f"{where} has graph format {shortened(found)}, this version reads {FORMAT}"
            raise GraphError(f"{said}; capture the model anew")
        if not is_whole(data):
            raise GraphError(f"{where} is damaged: its checksum is not that of its content; capture the model anew")
        data = {key: item for key, item in data.items() if key not in ("kind", "format", "checksum")}
        try:
            graph: OperatorGraph = decode(cls, data, "graph")
            _check(graph)
        except (ValueError, TypeError, OverflowError) as error:
            reason = str(error) if isinstance(error, ValueError) else "a number is out of range"
            raise GraphError(f"{where} is damaged: {reason}; capture the model anew") from None
        return graph


_PLACES = {"draw", "index", "start", "end"}  # arguments


def _without_places(data: Any) -> Any:
    """Encoded steps but for which mask they draw and where they begin to cut: other places are no other work."""
    if isinstance(data, list):
        return [_without_places(item) for item in data]
    if not isinstance(data, dict):
        return data
    if {"lower", "upper"} <= data.keys() and "dim" not in data:  # a factor that reads the same whatever the part
        return {"size": data["size"], "length": data["upper"][1] - data["lower"][1]}
    return {
        key: {name: a for name, a in item.items() if name not in _PLACES} if key == "args" else _without_places(item)
        for key, item in data.items()
    }


def _check(graph: OperatorGraph) -> None:
    """Raise ValueError where a graph does not hold together; the core checks the ops' dims and indices."""
    for tensor in graph.tensors:
        if tensor.dtype not in ITEM_SIZES:
            raise ValueError(f"tensor {shortened(tensor.name)} has the unknown dtype {shortened(tensor.dtype)}")
    if len({op.name for op in graph.ops}) != len(graph.ops):
        raise ValueError("two ops have one name")
    for index in (*graph.inputs, graph.loss, *(o.tensor for op in graph.ops for o in op.updates)):
        if not 0 <= index < len(graph.tensors):
            raise ValueError(f"there is no tensor {shortened(index)}")
    if graph.tensors[graph.loss].source != "op" or not any(
        o.tensor == graph.loss for op in graph.ops for o in op.outputs
    ):
        raise ValueError("no op makes the loss")
    for index, axis in zip(graph.inputs, graph.settings.batch_dims):
        if axis is not None and not 0 <= axis < len(graph.tensors[index].shape):
            raise ValueError(f"an input has no axis {shortened(axis)}")
    for op in graph.ops:
        _check_op(op, len(graph.draws))
    graph.native  # noqa: B018  builds the core's graph, which checks all indices inside ops
    for op in graph.ops:
        read = {value for step in op.steps for value in step.inputs}
        if any(operand.value not in read for operand in op.inputs):  # the core asks nobody for it, and looks for it
            raise ValueError(f"op {shortened(op.name)} has an input that it does not read")


def _check_op(op: Op, num_draws: int) -> None:
    """Raise ValueError for what the core does not look at."""
    where = f"op {shortened(op.name)}"
    for value in op.values:
        if value.dtype not in ITEM_SIZES:
            raise ValueError(f"{where} has the unknown dtype {shortened(value.dtype)}")
    for number in (op.flops, op.extra, *(step.flops for step in op.steps)):
        if not 0 <= number < 2**63:
            raise ValueError(f"{where} has {shortened(number)} flops or bytes")
    for value_index in (*op.saved, *(operand.value for operand in op.updates)):
        if not 0 <= value_index < len(op.values):
            raise ValueError(f"{where} has no value {shortened(value_index)}")
    for step in op.steps:
        if "draw" in step.args and step.args["draw"] not in range(num_draws):
            raise ValueError(f"{where} draws a mask that is not there")


def _build_native(graph: OperatorGraph) -> _core.Graph:
    native = _core.Graph()
    for t, read_type in zip(graph.tensors, graph.read_types):
        if t.source not in _SOURCES:
            raise ValueError(f"tensor {shortened(t.name)} has the unknown source {shortened(t.source)}")
        sizes = ITEM_SIZES[t.dtype], ITEM_SIZES[read_type]
        native.add_tensor(_SOURCES[t.source], *sizes, t.grad, [[n] for n in t.shape])
    casts = Casts(graph.tensors)
    for op in graph.ops:
        _add_op(native, op, graph.tensors, casts)
    return native


def _add_op(native: _core.Graph, op: Op, tensors: Sequence[Tensor], casts: Casts) -> None:
    try:
        storage, kept = storages(op), casts.kept(op)
        head_dtype = op.values[op.steps[op.head].outputs[0]].dtype
    except IndexError:
        raise ValueError(f"op {op.name!r} names a tensor or a value that is not there") from None
    outer = {o.value for o in (*op.inputs, *op.outputs)}
    steps = [
        (
            list(step.inputs),
            list(step.outputs),
            [d.size for d in step.dims],
            [d.whole for d in step.dims],
            [[[(f.size, f.dim, f.lower, f.upper) for f in axis] for axis in read] for read in step.reads],
            [[list(axis) for axis in write] for write in step.writes],
        )
        for step in op.steps
    ]
    combine = op.combine or Combine("sum", (), ())
    native.add_op(
        [[list(axis) for axis in value.factoring] for value in op.values],
        steps,
        [(d.size, d.step, d.step_dim, d.combinable, d.extra) for d in op.dims],
        [(i.tensor, i.value) for i in op.inputs],
        [(o.tensor, o.value) for o in op.outputs],
        op.head,
        (combine.mode == "gather", op.finishes, list(combine.dims), combine.factor,
         ITEM_SIZES[head_dtype]),
        op.backward,
        [ITEM_SIZES[v.dtype] if i in outer or storage[i] == i else 0 for i, v in enumerate(op.values)],
        sorted(kept),
        op.extra,
        [(value, i) for value, i in casts.of(op) if value in kept and tensors[op.inputs[i].tensor].grad],
    )  # fmt: skip
