"""Compares two calls of a model in one exported graph: does the second compute the same as the first?

Each call of an op has a meaning: the op, its arguments, and what they mean in turn. Writes in place change the meaning
of whatever lies in the same memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import fx
from torch._subclasses import FakeTensor
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind
from torch.fx.node import map_aggregate
from torch.fx.traceback import annotate

_MARK = "soapstone call"


@contextmanager
def marked_call(number: int) -> Iterator[None]:
    """Annotate the nodes that are exported inside the context with the number of this call."""
    with annotate({_MARK: number}):
        yield


def repeats(program: ExportedProgram, num_inputs: int) -> bool:
    """Whether two losses mean the same, each of the same number of inputs of its own. Also, the second call must not
    use a value of the first that depends on an input, a parameter or a random number."""
    first, second = _Meanings(program, num_inputs).of_losses()[-2:]
    return bool(first == second)


def same_loss(one: ExportedProgram, other: ExportedProgram, num_inputs: int) -> bool:
    """Whether the losses of two programs, each of one call, mean the same."""
    first, second = (_Meanings(program, num_inputs).of_losses()[-1] for program in (one, other))
    return bool(first == second)


class _Meanings:
    def __init__(self, program: ExportedProgram, num_inputs: int) -> None:
        self._module = program.graph_module
        self._meaning: dict[fx.Node, object] = {}
        self._varies: set[fx.Node] = set()  # nodes that depend on an input, a parameter or a random number
        self._own: dict[fx.Node, int] = {}  # of those, the call that computed it
        self._written: dict[int, object] = {}  # by storage
        self._buffers: set[int] = set()
        inputs = 0
        for spec, node in zip(program.graph_signature.input_specs, program.graph.find_nodes(op="placeholder")):
            if spec.kind == InputKind.USER_INPUT:
                call, place = divmod(inputs, num_inputs)
                self._meaning[node], inputs = ("input", place), inputs + 1
                self._own[node] = call
            elif spec.kind == InputKind.CONSTANT_TENSOR:
                self._meaning[node] = _told(program.constants[spec.target])
            else:
                self._meaning[node] = (spec.kind, spec.target)
            if spec.kind != InputKind.CONSTANT_TENSOR:
                self._varies.add(node)
            if spec.kind == InputKind.BUFFER:
                self._buffers.update(_storages(node))

    def of_losses(self) -> list[object]:
        call = 0
        losses: Any = ()
        for node in self._module.graph.nodes:
            if node.op == "output":
                losses = node.args[0]
            elif node.op != "placeholder":
                now = (node.meta.get("custom") or {}).get(_MARK, call)
                if now != call:
                    call = now
                    for storage in self._buffers:  # which each call may update
                        self._written.pop(storage, None)
                self._read(node, call)
        return [self._of(loss) for loss in losses]

    def _read(self, node: fx.Node, call: int) -> None:
        given = node.all_input_nodes
        varies = any(n in self._varies for n in given) or _draws(node)
        kept = node.name if any(n in self._varies and self._own.get(n, call) != call for n in given) else ""
        arguments = map_aggregate((node.args, tuple(sorted(node.kwargs.items()))), self._of)
        target = _told(getattr(self._module, str(node.target))) if node.op == "get_attr" else str(node.target)
        self._meaning[node] = hash((target, repr(arguments), kept))
        if varies:
            self._varies.add(node)
            self._own[node] = call
        if _writes(node.target):
            for storage in _storages(node):
                self._written[storage] = hash((self._written.get(storage), self._meaning[node]))

    def _of(self, value: Any) -> Any:
        if not isinstance(value, fx.Node):
            return value
        written = tuple(self._written[s] for s in _storages(value) if s in self._written)
        return "node", self._meaning[value], written


def _told(value: Any) -> object:
    """A region of calls by its text, a constant by its numbers."""
    if isinstance(value, fx.GraphModule):
        return value.code
    if isinstance(value, torch.Tensor) and not isinstance(value, FakeTensor):
        flat = value.detach().cpu().reshape(-1).contiguous()
        return value.shape, value.dtype, flat.view(torch.uint8).numpy().tobytes()
    return id(value)


def _writes(target: Any) -> bool:
    return isinstance(target, torch._ops.OpOverload) and target._schema.is_mutable and target._opname != "detach_"


def _draws(node: fx.Node) -> bool:
    return isinstance(node.target, torch._ops.OpOverload) and torch.Tag.nondeterministic_seeded in node.target.tags


def _storages(node: fx.Node) -> list[int]:
    values = node.meta.get("val")
    values = values if isinstance(values, tuple | list) else [values]
    return [value.untyped_storage()._cdata for value in values if isinstance(value, FakeTensor)]
