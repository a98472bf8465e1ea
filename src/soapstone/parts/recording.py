"""Record what a function does with tensors as a GraphModule: torch's calls, one after the other, and nothing between.

What does not depend on the inputs (masks, indices, counts) is computed once, here, and kept.
"""

from __future__ import annotations

import copy
import operator
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

import torch
from torch import fx
from torch.fx.node import map_aggregate
from torch.overrides import TorchFunctionMode

from .place import Draws, Place
from .simplify import BYTES, IS_PARAMETER, SHAPE, casts_of, simplify

Outputs = list[torch.Tensor]
Function = Callable[[Sequence[torch.Tensor], Draws | None], Outputs]

_ANSWERS = (bool, int, float)  # a number read from a tensor, which another step might answer otherwise
_FRESH = {"new_zeros", "new_ones", "new_full", "new_tensor", "zeros_like", "ones_like", "full_like"}
_LIKE = {"to", "expand_as", "type_as"}  # of a second tensor they read only what it is like
_STATIC = {
    *("dim", "size", "numel", "is_floating_point", "is_contiguous", "stride", "storage_offset", "element_size"),
    "__len__",
}

_METHODS = {f: name for name in dir(torch.Tensor) if callable(f := getattr(torch.Tensor, name)) and f.__hash__}


class Recording:
    """A recorded function: `run` does it again on other inputs of the same shapes."""

    def __init__(
        self, graph: fx.Graph, constants: dict[str, torch.Tensor], places: list[Place],
        views: list[int], differentiable: list[bool],
    ) -> None:  # fmt: skip
        self.graph, self._constants, self._places = graph, constants, places
        self._views = views  # the outputs that show another tensor
        self._differentiable = differentiable  # by output
        self._module: fx.GraphModule | None = None
        self._ways: list[tuple[str, Callable[..., Outputs]]] = []  # faster ones; each builds on the one before

    @property
    def module(self) -> fx.GraphModule:
        if self._module is None:
            root: dict[str, Any] = dict(self._constants)
            self._module = fx.GraphModule(root, self.graph, "Segment")
        return self._module

    def put_out_casts(self, inputs: Iterable[int]) -> None:
        """From now on put out casts of some inputs, too, each after what is cast."""
        (output,) = self.graph.find_nodes(op="output")
        output.args = ([*output.args[0], *chain.from_iterable(casts_of(self.graph, inputs))],)
        self._module = None

    def compile(self) -> None:
        """Let torch.compile make kernels of it when it runs next."""
        compiled = torch.compile(self._without_views(), fullgraph=True, dynamic=False)
        self._ways.append(("does not compile", compiled))

    def keep_launches(self, lasting: Iterable[int]) -> None:
        """Keep what it launches as CUDA graphs, forward and backward, when it runs next. They read the same memory each
        time: the `lasting` inputs, by number, where they are, the others from copies."""
        kept = _Launches(self._act, frozenset(lasting), self._differentiable)
        self._ways.append(("cannot be a CUDA graph", kept))

    @property
    def is_faster(self) -> bool:
        return bool(self._ways)

    def fall_back(self) -> str:
        """Run without the last of the faster ways from now on; what it cannot be."""
        return self._ways.pop()[0]

    @property
    def _act(self) -> Callable[..., Outputs]:
        return self._ways[-1][1] if self._ways else self.module.forward

    def _without_views(self) -> fx.GraphModule:
        """The same with every output in memory of its own: torch's cache on disk gives views back with wrong shapes."""
        graph = copy.deepcopy(self.graph)
        (output,) = graph.find_nodes(op="output")
        with graph.inserting_before(output):
            (nodes,) = output.args
            cloned = {i: graph.call_method("clone", (nodes[i],)) for i in self._views}
        output.args = ([cloned.get(i, node) for i, node in enumerate(nodes)],)
        return fx.GraphModule(dict(self._constants), graph, "Segment")

    def run(self, inputs: Sequence[torch.Tensor], draws: Draws | None) -> Outputs:
        masks = [draws.keep(place) for place in self._places] if draws is not None else []
        return list(self._act(*inputs, *masks))


CAPTURING = threading.Lock()  # held while CUDA graphs are captured: then no other thread may ask a GPU anything


class _Launches:
    """A function's kernels as CUDA graphs, kept at the first call."""

    def __init__(self, act: Callable[..., Outputs], lasting: frozenset[int], differentiable: list[bool]) -> None:
        self._act, self._lasting, self._differentiable = act, lasting, differentiable
        self._kept: Any = None

    def __call__(self, *inputs: torch.Tensor) -> Outputs:
        if self._kept is None:
            self._kept = self._keep(inputs)
        # To autograd, all of a graph's outputs look differentiable.
        return [y if needed else y.detach() for y, needed in zip(self._kept(*inputs), self._differentiable)]

    def _keep(self, inputs: Sequence[torch.Tensor]) -> Any:
        """Of lasting inputs the graphs see the memory and not the object, which may get other memory later; torch then
        copies. It runs the function a few times first, so whatever that changes must not be lasting."""
        seen = [x.detach() if i in self._lasting else x.detach().clone() for i, x in enumerate(inputs)]
        samples = tuple(own.requires_grad_(x.requires_grad) for own, x in zip(seen, inputs))
        act = lambda *xs: tuple(self._act(*xs))  # noqa: E731
        with CAPTURING:
            return torch.cuda.make_graphed_callables(act, samples, allow_unused_input=True)


def record(function: Function, inputs: Sequence[torch.Tensor], draws: Draws | None) -> tuple[Recording, Outputs]:
    """Call the function, which must not read numbers out of tensors; return what it did, and what it returned."""
    recorder = _Recorder()
    for i, tensor in enumerate(inputs):
        recorder.take(f"x{i}", tensor)
    seen = None if draws is None else _SeenDraws(draws, recorder)
    with recorder:
        outputs = function(inputs, seen)
    recorder.graph.output([recorder.node_of(tensor) for tensor in outputs])
    recorder.graph.eliminate_dead_code(_acts)
    simplify(recorder.graph)
    views = [i for i, y in enumerate(outputs) if y._is_view() and all(y is not x for x in inputs)]
    differentiable = [y.requires_grad for y in outputs]
    places = [] if seen is None else seen.places
    return Recording(recorder.graph, recorder.constants, places, views, differentiable), outputs


class _SeenDraws:
    """Masks become inputs of their own, since each step draws others."""

    def __init__(self, draws: Draws, recorder: _Recorder) -> None:
        self._draws, self._recorder = draws, recorder
        self.places: list[Place] = []

    def keep(self, place: Place) -> torch.Tensor:
        place = replace(place, draws=None)  # which would keep all that was recorded
        with torch._C.DisableTorchFunction():
            mask = self._draws.keep(place)
        self._recorder.take(f"mask{len(self.places)}", mask)
        self.places.append(place)
        return mask


class _Recorder(TorchFunctionMode):
    def __init__(self) -> None:
        super().__init__()
        self.graph = fx.Graph()
        self.constants: dict[str, torch.Tensor] = {}
        self._nodes: dict[int, fx.Node] = {}
        self._alive: list[Any] = []  # so that no id is used twice
        self._last_input: fx.Node | None = None

    def take(self, name: str, tensor: torch.Tensor) -> None:
        with self.graph.inserting_after(self._last_input) if self._last_input else self.graph.inserting_before():
            self._last_input = self.graph.placeholder(name)
        if isinstance(tensor, torch.nn.Parameter):
            self._last_input.meta[IS_PARAMETER] = True
        self._know(tensor, self._last_input)

    def node_of(self, tensor: torch.Tensor) -> fx.Node:
        if id(tensor) not in self._nodes:
            name = f"constant{len(self.constants)}"
            self.constants[name] = tensor.detach()
            self._know(tensor, self.graph.get_attr(name))
        return self._nodes[id(tensor)]

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        name = getattr(func, "__name__", "")
        if name not in _FRESH and (self._depends(args[:1] if name in _LIKE else args) or self._depends(kwargs)):
            self._note(func, name, args, kwargs, result)
        return result

    def _note(self, func: Any, name: str, args: Any, kwargs: dict[str, Any], result: Any) -> None:
        if isinstance(result, torch.Tensor) and args and _same(args[0], result) and not name.endswith("_"):
            self._know(result, self.node_of(args[0]))
            return
        if not isinstance(result, torch.Tensor | tuple | list) or not _tensors(result):
            if name == "__setitem__" or (isinstance(result, _ANSWERS) and name not in ("__get__", *_STATIC)):
                raise AssertionError(f"{name} cannot be recorded")
            return
        if name.endswith("_") and not name.endswith("__") and id(args[0]) not in self._nodes:
            raise AssertionError(f"{name} would change a constant")
        self._know(result, self._call(func, name, self._to_nodes(args), self._to_nodes(kwargs)))

    def _call(self, func: Any, name: str, args: Any, kwargs: Any) -> fx.Node:
        if name == "__get__":
            return self.graph.call_function(getattr, (args[0], func.__self__.__name__))
        if name == "__getitem__":
            return self.graph.call_function(operator.getitem, args)
        if func in _METHODS:
            return self.graph.call_method(_METHODS[func], args, kwargs)
        return self.graph.call_function(func, args, kwargs)

    def _know(self, result: Any, node: fx.Node) -> None:
        self._alive.append(result)
        if isinstance(result, torch.Tensor):
            self._nodes[id(result)] = node
            node.meta.setdefault(SHAPE, tuple(result.shape))
            node.meta.setdefault(BYTES, result.itemsize)
            return
        for i, item in enumerate(result):
            if isinstance(item, torch.Tensor):
                self._know(item, self.graph.call_function(operator.getitem, (node, i)))

    def _to_nodes(self, value: Any) -> Any:
        return map_aggregate(value, lambda x: self.node_of(x) if isinstance(x, torch.Tensor) else x)

    def _depends(self, value: Any) -> bool:
        return any(id(tensor) in self._nodes for tensor in _tensors(value))


def _acts(node: fx.Node) -> bool:
    """Whether a call has side effects: a batch norm changes running statistics in place."""
    changes = node.target is torch.batch_norm and node.args[3] is not None and node.args[5]
    return node.op in ("placeholder", "output") or bool(changes)


def _same(given: Any, result: torch.Tensor) -> bool:
    """Whether a call did nothing, such as a reshape to the same shape; autograd must see both alike."""
    if given is result:
        return True
    return (
        isinstance(given, torch.Tensor)
        and all(getattr(given, fact) == getattr(result, fact) for fact in ("shape", "dtype", "requires_grad"))
        and (given.data_ptr(), given.stride()) == (result.data_ptr(), result.stride())
    )


def _tensors(value: Any) -> list[torch.Tensor]:
    found: list[torch.Tensor] = []
    map_aggregate(value, lambda x: found.append(x) if isinstance(x, torch.Tensor) else None)
    return found
