"""A device's segments as they run: recorded in the first step; from the second on, where that is asked for, compiled or
as CUDA graphs."""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass

import torch
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.utils.checkpoint import checkpoint

from ..parts import Draws, Recording, record
from .casts import Cast
from .compiling import FasterRecording
from .keys import Key, State, Window
from .listing import shortened
from .segments import Segment
from .weave import Weaver

Edge = GradientEdge | None  # None: of what has no gradient


@dataclass(frozen=True, slots=True)
class _Recorded:
    """`gives` is what the outputs are, which is known once the segment has run."""

    recording: Recording
    gives: list[Key]
    faster: FasterRecording | None


class RecordedSegment:
    """One segment. `takes` is by window what it takes, `states` are the parameters and buffers among that."""

    def __init__(
        self, segment: Segment, weaver: Weaver, draws: Draws, *, compiled: bool, graphed: bool, gathered: Set[int]
    ) -> None:
        self._segment, self._weaver, self._draws = segment, weaver, draws
        self._compiled, self._graphed = compiled, graphed
        self.takes = weaver.windows.takes(segment)
        self.states = [key.tensor for key in segment.takes if isinstance(key, State)]
        updated = {operand.tensor for op in weaver.graph.ops for operand in op.updates}
        windows = [(i, key) for i, key in enumerate(self.takes) if isinstance(key, Window)]
        self._changing = {i for i, key in windows if key.tensor in updated}
        self._recorded: _Recorded | None = None
        is_plain = not (segment.recompute or compiled or graphed)  # others do not give casts out
        self._gathered = [i for i, key in windows if key.tensor in gathered and is_plain]
        self._casts: list[Cast] = []

    def run(self, inputs: Sequence[torch.Tensor]) -> dict[Key, torch.Tensor]:
        """What the segment makes of what it takes, with its autograd graph."""
        if self._recorded is None:
            if not (self._segment.recompute or self._gathered):
                return self._record(inputs)
            self._record(self._unchanged(inputs))  # what it makes keeps all between
        found = self._recorded
        assert found is not None
        if found.faster is None:
            made = self._replay(found.recording, inputs)
        else:
            made = found.faster.attempt("forward", lambda: self._replay(found.recording, inputs))
        made, casts = made[: len(found.gives)], made[len(found.gives) :]
        self._casts = [Cast(*pair) for pair in zip(casts[::2], casts[1::2])]
        return dict(zip(found.gives, made, strict=True))

    def take_casts(self) -> list[Cast]:
        """The casts of gathered weights that the last run has made; they are the caller's now."""
        found, self._casts = self._casts, []
        return found

    def _replay(self, recording: Recording, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        def act(*xs: torch.Tensor) -> list[torch.Tensor]:
            return recording.run(self._unchanged(xs), self._draws)  # which draws the same masks again in one step

        if not (self._segment.recompute and torch.is_grad_enabled()):
            return recording.run(inputs, self._draws)
        made: list[torch.Tensor] = checkpoint(act, *inputs, use_reentrant=False, preserve_rng_state=False)
        return made

    def _unchanged(self, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Copies of buffers that the segment changes in place, as it would do again."""
        return [x.clone() if i in self._changing else x for i, x in enumerate(inputs)]

    def _record(self, inputs: Sequence[torch.Tensor]) -> dict[Key, torch.Tensor]:
        gives: list[Key] = []

        def act(xs: Sequence[torch.Tensor], draws: Draws | None) -> list[torch.Tensor]:
            made = self._weaver.run(self._segment, dict(zip(self.takes, xs)), draws)
            gives.extend(made)
            return list(made.values())

        with self._weaver.place:
            recording, outputs = record(act, inputs, self._draws)
        recording.put_out_casts(self._gathered)
        self._recorded = _Recorded(recording, gives, self._made_faster(recording))
        return dict(zip(gives, outputs, strict=True))

    def _made_faster(self, recording: Recording) -> FasterRecording | None:
        # A CUDA graph keeps all that it makes, and a compiled backward is not compiled inside of autograd's hooks.
        if self._segment.recompute or not (self._compiled or self._graphed):
            return None
        ops = self._weaver.graph.ops
        states = {i for i, key in enumerate(self.takes) if isinstance(key, Window)}
        lasting = sorted(states - self._changing)
        names = shortened([ops[task.op].name for task in self._segment.tasks])
        return FasterRecording(names, recording, compiled=self._compiled, lasting=lasting if self._graphed else None)

    def differentiate(
        self,
        edges: Sequence[Edge],
        gradients: Sequence[torch.Tensor | None],
        inputs: Callable[[], Sequence[torch.Tensor]],
    ) -> None:
        """Run backward. Where it fails as it is and is tried otherwise, forward runs again, on the same inputs."""
        assert self._recorded is not None
        if self._recorded.faster is None:
            _differentiate(edges, gradients)
            return
        first = [edges]

        def act() -> None:
            _differentiate(first.pop() if first else [edge_of(y) for y in self.run(inputs()).values()], gradients)

        self._recorded.faster.attempt("backward", act)


class Weighing:
    """What a device adds to the weight of a mean loss, where backward begins before the loss is whole."""

    def __init__(self, weaver: Weaver, draws: Draws) -> None:
        self._weaver, self._draws = weaver, draws
        self.takes = weaver.windows.takes(weaver.weighing)
        self._recording: Recording | None = None

    def run(self, inputs: Sequence[torch.Tensor]) -> torch.Tensor | None:
        """None where the device has no part of such a mean."""
        if not self._weaver.weighing.tasks:
            return None
        if self._recording is not None:
            return self._recording.run(inputs, self._draws)[0]

        def act(xs: Sequence[torch.Tensor], _: Draws | None) -> list[torch.Tensor]:
            return [self._weaver.weigh(dict(zip(self.takes, xs)))]

        with self._weaver.place:
            self._recording, (weight,) = record(act, inputs, self._draws)
        return weight


def edge_of(output: torch.Tensor) -> Edge:
    """Where backward begins, without what forward made there, which may go before."""
    return get_gradient_edge(output) if output.requires_grad else None


def _differentiate(edges: Sequence[Edge], gradients: Sequence[torch.Tensor | None]) -> None:
    pairs = [(edge, g) for edge, g in zip(edges, gradients) if g is not None and edge is not None]
    if pairs:
        torch.autograd.backward([edge for edge, _ in pairs], [g for _, g in pairs])
