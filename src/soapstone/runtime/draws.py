"""Dropout masks that are the same on any strategy.

Counter mode hashes (seed, step, draw, element), so that a part makes just the mask of its own elements. The hash of an
element is kept; a step multiplies and adds numbers of its own and mixes once more, which takes six small kernels.
Replay mode draws whole masks from torch's generator, call after call as eager PyTorch does, and cuts boxes out of them.
"""

from __future__ import annotations

from copy import copy
from itertools import product
from typing import Any

import torch

from ..errors import RankError
from ..graph import OperatorGraph
from ..parts import Place, reframe, whole

_MASK = (1 << 64) - 1


def _signed(x: int) -> int:
    x &= _MASK
    return x - (1 << 64) if x >> 63 else x


_STEP = 0x9E3779B97F4A7C15
_ROUNDS = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB))
_FACTOR = 0x2C1B3C6D  # odd


def _mixed(x: int) -> int:
    """splitmix64's finaliser."""
    for shift, factor in _ROUNDS:
        x = ((x ^ (x >> shift)) * factor) & _MASK
    return x ^ (x >> 31)


def _mix(x: torch.Tensor) -> torch.Tensor:
    """The same of each element; int64 wraps, and the mask makes the shift logical."""
    for shift, factor in _ROUNDS:
        x = (x ^ ((x >> shift) & (_MASK >> shift))) * _signed(factor)
    return x ^ ((x >> 31) & (_MASK >> 31))


def _int32(x: int) -> int:
    x &= 0xFFFFFFFF
    return x - (1 << 32) if x >> 31 else x


def elements(place: Place) -> torch.Tensor:
    """The place of each local element in the whole output, counted row-major."""
    index = torch.zeros((), dtype=torch.int64)
    sizes = [dim.size for dim in place.step.dims]
    stride = 1
    dims = [d for axis in place.step.writes[0] for d in axis]
    for position, d in enumerate(reversed(dims)):
        lo, hi = place.dims[d]
        index = index + (torch.arange(lo, hi) * stride).view([-1] + [1] * position)
        stride *= sizes[d]
    return index.reshape(place.shape())


def _check_mode(state: dict[str, Any], mode: str, *keys: str) -> None:
    if state.get("mode") != mode or not all(key in state for key in keys):
        raise RankError(f"the checkpoint was saved with dropout={state.get('mode')!r}; pass the same, not {mode!r}")


class CounterDraws:
    def __init__(self, seed: int, place: torch.device) -> None:
        self.seed, self.step, self.microbatch, self.place = seed, 0, 0, place
        self._hashed: dict[int, tuple[Place, torch.Tensor]] = {}  # 32 bits of each element, which never change

    def of(self, graph: OperatorGraph) -> CounterDraws:
        """Those of another graph, which are counted together with these."""
        return self

    def begin(self, microbatches: int) -> None:
        self.step += 1

    def undo(self) -> None:
        """The step that has begun is none."""
        self.step -= 1

    def state(self) -> dict[str, Any]:
        """All that later masks depend on, for a checkpoint."""
        return {"mode": "counter", "seed": self.seed, "step": self.step}

    def restore(self, state: dict[str, Any]) -> None:
        """Raises RankError where it is of another mode."""
        _check_mode(state, "counter", "seed", "step")
        self.seed, self.step = int(state["seed"]), int(state["step"])
        self._hashed.clear()

    def keep(self, place: Place) -> torch.Tensor:
        draw = int(place.args["draw"])
        if id(place) not in self._hashed:
            own = _mix(elements(place) * _signed(_STEP) + _signed(self._key(draw)))
            self._hashed[id(place)] = (place, (own >> 32).to(torch.int32).to(self.place))
        key = self._key(draw, self.step, *([self.microbatch] if self.microbatch else []))
        x = torch.mul(self._hashed[id(place)][1], _int32(key | 1)).add_(_int32(key >> 32))
        x.bitwise_xor_(x >> 16).mul_(_FACTOR)
        return x >= round(float(place.args["p"]) * 2**32) - 2**31

    def _key(self, *words: int) -> int:
        """64 bits for this seed and these numbers."""
        key = 0
        for word in (self.seed, *words):
            key = _mixed((key * _STEP + word) & _MASK)
        return key


class ReplayDraws:
    def __init__(self, graph: OperatorGraph, state: torch.Tensor, place: torch.device, seed: int) -> None:
        self.draws, self.place, self.seed = graph.draws, place, seed
        self.generator = torch.Generator()
        self.generator.set_state(state)
        self._before = state
        self.microbatch = 0
        self.masks: dict[tuple[int, int], torch.Tensor] = {}  # by microbatch and draw

    def of(self, graph: OperatorGraph) -> ReplayDraws:
        """Those of another graph, of the same generator."""
        other = copy(self)
        other.draws = graph.draws
        return other

    def begin(self, microbatches: int) -> None:
        """Draw all masks of a step; torch draws none where all or nothing is kept."""
        self.masks, self._before = {}, self.generator.get_state()
        for microbatch, (number, draw) in product(range(microbatches), enumerate(self.draws)):
            if draw.unread:
                torch.rand(draw.shape, generator=self.generator)
            elif 0 < draw.p < 1:
                mask = torch.empty([draw.shape[axis] for axis in draw.order], dtype=torch.bool)
                mask.bernoulli_(1 - draw.p, generator=self.generator)
                axes = [draw.order.index(axis) for axis in range(mask.ndim)]
                self.masks[microbatch, number] = mask.permute(axes)

    def undo(self) -> None:
        """The step that has begun is none."""
        self.generator.set_state(self._before)

    def state(self) -> dict[str, Any]:
        """All that later masks depend on, for a checkpoint."""
        return {"mode": "replay", "seed": self.seed, "generator": bytes(self.generator.get_state().tolist()).hex()}

    def restore(self, state: dict[str, Any]) -> None:
        """Raises RankError where it is of another mode."""
        _check_mode(state, "replay", "generator")
        self.generator.set_state(torch.tensor(list(bytes.fromhex(state["generator"])), dtype=torch.uint8))

    def keep(self, place: Place) -> torch.Tensor:
        mask = self.masks[self.microbatch, place.args["draw"]]
        flat = [[n] for n in mask.shape]
        dims = [[place.step.dims[d].size for d in axis] for axis in place.step.writes[0]]
        box = [place.dims[d] for axis in place.step.writes[0] for d in axis]
        return reframe(mask, whole(flat), flat, box, dims).to(self.place)
