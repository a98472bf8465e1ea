"""One part of one op, ready to be timed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from math import prod

import torch

from ...errors import SoapstoneError
from ...graph import ITEM_SIZES, OperatorGraph
from ...parts import Function, Part, Place, record
from ..protocol import OpTimes, Question
from .rounds import Timed
from .tensors import drawn_inputs

COPIES = 4
SMALL_BYTES = 2**25


class Masks:
    """Dropout masks, each drawn once: where they come from is not timed."""

    def __init__(self) -> None:
        self._device, self._drawn = torch.get_default_device(), dict[int, torch.Tensor]()

    def keep(self, place: Place) -> torch.Tensor:
        number = int(place.args["draw"])
        if number not in self._drawn:
            drawn = torch.rand(place.shape(), device=self._device)
            self._drawn[number] = drawn >= float(place.args["p"])
        return self._drawn[number]


class Stage:
    """A forward, and the backward of so many copies of it, which is None where there is nothing to differentiate."""

    def __init__(self, forward: Timed, backward: Timed | None, copies: int = 1) -> None:
        self.forward, self.backward, self.copies = forward, backward, copies

    @property
    def timed(self) -> list[Timed]:
        return [self.forward] if self.backward is None else [self.forward, self.backward]

    def on_device(self, engine: Timed) -> tuple[int, int]:
        """Forward and backward. A run of parts is differentiated by one call, so what a call takes before it does
        anything is no part's."""
        backward = 0.0 if self.backward is None else (self.backward.device - engine.device) / self.copies
        return max(1, round(self.forward.device)), max(1, round(backward))

    def on_host(self, engine: Timed) -> tuple[int, int]:
        backward = 0.0 if self.backward is None else (self.backward.host - engine.host) / self.copies
        return round(self.forward.host), max(0, round(backward))


class Trial:
    """A question, with one stage or, where a combine lies between, two. Raises SoapstoneError where the op cannot run
    alone."""

    def __init__(self, graph: OperatorGraph, question: Question) -> None:
        index, extents, combines = question
        part = Part.of_extents(graph, index, extents)
        try:
            inputs = drawn_inputs(graph, part)
            shared = [x for x, is_shared in zip(inputs, shared_inputs(graph, index)) if is_shared]
            self.stages = _around_combine(part, inputs, shared) if combines else [_whole(part, inputs, shared)]
        except (RuntimeError, IndexError, ValueError, TypeError, AssertionError) as error:
            sizes = ", ".join(f"{dim.name}={n}" for dim, n in zip(part.op.dims, extents))
            raise SoapstoneError(
                f"op {part.op.name!r} ({part.op.kind}) cannot be measured alone with {sizes}: "
                f"{str(error).splitlines()[0] if str(error) else type(error).__name__}; use analytic costs"
            ) from error

    @property
    def timed(self) -> list[Timed]:
        return [timed for stage in self.stages for timed in stage.timed]

    def times(self, engine: Timed) -> OpTimes:
        (forward, backward), *finish = [stage.on_device(engine) for stage in self.stages]
        launches = [ns for stage in self.stages for ns in stage.on_host(engine)]
        return OpTimes(forward, backward, *(finish[0] if finish else (1, 1)), *launches)


def engine_alone() -> Timed:
    """What torch.autograd takes to differentiate next to nothing."""
    x = torch.ones(1, requires_grad=True)
    return Timed(_differentiation([x.view_as(x)], [x]))


def bytes_of(graph: OperatorGraph, question: Question) -> int:
    """About what a trial holds: values, what backward saves of them, and gradients."""
    part = Part.of_extents(graph, *question[:2])
    local = [prod(max(hi - lo, 0) for lo, hi in box) for box in part.boxes]
    return 3 * sum(n * ITEM_SIZES[value.dtype] for n, value in zip(local, part.op.values))


def shared_inputs(graph: OperatorGraph, index: int) -> list[bool]:
    """Which inputs are parameters of several ops: a gradient of theirs is also added to the others'."""
    return [
        graph.tensors[operand.tensor].source == "parameter" and graph.readers[operand.tensor] > 1
        for operand in graph.ops[index].inputs
    ]


def _whole(part: Part, inputs: list[torch.Tensor], shared: list[torch.Tensor]) -> Stage:
    return _stage(lambda xs, draws: _all_made(part, part.run(xs, draws)), inputs, inputs, shared, part.op.backward)


def _around_combine(part: Part, inputs: list[torch.Tensor], shared: list[torch.Tensor]) -> list[Stage]:
    before = _stage(lambda xs, draws: [part.partial(xs, draws)], inputs, inputs, shared, part.op.backward)
    if not part.op.finishes:
        return [before]
    assert part.op.combine is not None
    share = part.partial(inputs, Masks()).detach()
    combined = torch.stack([share, share]) if part.op.combine.mode == "gather" else share * 2
    combined.requires_grad_(part.op.backward and combined.is_floating_point())
    given = [combined, *part.values.values()]
    leaves = [combined, *inputs]
    return [
        before,
        _stage(lambda xs, draws: _all_made(part, part.finish(xs[0], draws)), given, leaves, [], part.op.backward),
    ]


def _all_made(part: Part, outputs: list[torch.Tensor]) -> list[torch.Tensor]:
    """With the next values of buffers, which are work too."""
    return [*outputs, *(values for _, values in part.updates.values())]


def _stage(
    function: Function,
    given: Sequence[torch.Tensor],
    leaves: Sequence[torch.Tensor],
    shared: Sequence[torch.Tensor],
    backward: bool,
) -> Stage:
    """Torch's calls alone are timed, without the Python that decides them: so the runtime runs its segments."""
    draws = Masks()
    recording, _ = record(function, given, draws)
    forward = partial(recording.run, given, draws)
    roots = [y for y in forward() if y.requires_grad]
    wanted = [x for x in leaves if x.requires_grad]
    if not (backward and roots and wanted):
        return Stage(Timed(forward), None)
    own = [x for x in wanted if not any(x is other for other in shared)]
    copies = _copies(own) if wanted[0].is_cuda else 1
    for _ in range(copies - 1):
        twins = {id(x): _twin(x) for x in own}
        roots += [y for y in recording.run([twins.get(id(x), x) for x in given], draws) if y.requires_grad]
        wanted += twins.values()
    return Stage(Timed(forward), Timed(_differentiation(roots, wanted, shared)), copies)


def _copies(own: Sequence[torch.Tensor]) -> int:
    """A GPU's segment differentiates many parts in one call, which takes its host some time of its own. For parts so
    small that it counts, several are differentiated by one call, each with its own of what they do not share."""
    return COPIES if sum(x.nbytes for x in own) < SMALL_BYTES else 1


def _twin(x: torch.Tensor) -> torch.Tensor:
    return x.detach().clone().requires_grad_()


def _differentiation(
    roots: list[torch.Tensor], wanted: list[torch.Tensor], shared: Sequence[torch.Tensor] = ()
) -> Callable[[], object]:
    gradients = [torch.rand_like(y) for y in roots]
    sums = [torch.zeros_like(x) if any(x is other for other in shared) else None for x in wanted]
    kept: list[Sequence[torch.Tensor | None]] = []  # as in training: else the next op finds their memory warm

    def differentiate() -> None:
        found = torch.autograd.grad(roots, wanted, gradients, retain_graph=True, allow_unused=True)
        for total, gradient in zip(sums, found):
            if total is not None and gradient is not None:
                total.add_(gradient)
        kept[:] = [found]

    return differentiate
