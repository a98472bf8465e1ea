"""Parameters of which each of several holders keeps a share.

Every piece that n devices hold is cut, flat, into n equal shares, the last of them smaller or empty. A rank's shares of
a tensor are one flat parameter, which the optimizer changes. What parts read is the shard beside it: it is filled by a
gather before it is used, and where only shares are kept, its memory is given back after.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod

import torch
from torch import nn

from ..parts import Box, lengths
from .keys import Gathered
from .placement import Placement
from .plan import Event, Gather, Run, Sync
from .segments import Segment
from .shard import Shard
from .transports import Pending

Piece = tuple[Sequence[int], Sequence[Box]]  # its holders, and its boxes


@dataclass(frozen=True, slots=True)
class Portion:
    """One rank's share of a piece: `size` elements from `first` on of its flat elements, which stand at `place` in the
    rank's parameter. Shares have `width` elements, so far as there are any left."""

    boxes: Sequence[Box]
    num_holders: int
    total: int
    width: int
    first: int
    size: int
    place: int

    @property
    def is_shared(self) -> bool:
        return self.num_holders > 1


class Sharded:
    """A rank's shares of one parameter."""

    def __init__(self, shard: Shard, pieces: Sequence[Piece], device: int, *, keeps_weights: bool) -> None:
        self.shard, self.keeps_weights = shard, keeps_weights
        self.portions = _portions(pieces, device)
        boxes = [box for portion in self.portions.values() for box in portion.boxes]
        self._lies_within = keeps_weights and len(boxes) == 1  # the share is a view of the weights
        self._unsummed: set[int] = set()
        self.parameter = nn.Parameter(self._own(shard.tensor.data))
        self.release()

    # Weights

    def obtain(self) -> None:
        """Give the shard memory, with what no other rank has a share of."""
        self.shard.allocate()
        for number, portion in self.portions.items():
            if not portion.is_shared:
                self.fill(number, self.own(number))

    def release(self) -> None:
        """Take its memory back, where only the shares are kept."""
        if not self.keeps_weights:
            self.shard.free()

    def own(self, piece: int) -> torch.Tensor:
        """This rank's share of a piece, as wide as all are."""
        portion = self.portions[piece]
        found = self.parameter.detach()[portion.place : portion.place + portion.size]
        return nn.functional.pad(found, (0, portion.width - portion.size)) if portion.size < portion.width else found

    def fill(self, piece: int, shares: torch.Tensor) -> None:
        """Take all holders' shares of a piece, one after the other. Autograd may have kept the shard for backward,
        which reads the same values again: so this is no change to it."""
        portion, local = self.portions[piece], self.shard.tensor.data
        given = shares.reshape(-1)[: portion.total]
        if self._lies_within:  # and is exact, where shares may travel in a smaller type
            flat, own = self._flat(portion, local), slice(portion.first, portion.first + portion.size)
            flat[: own.start].copy_(given[: own.start])
            flat[own.stop :].copy_(given[own.stop :])
            if self.parameter.data_ptr() != flat[own].data_ptr():  # a user gave it other memory
                flat[own] = self.parameter.detach()
            return
        sizes = [prod(lengths(box)) for box in portion.boxes]
        for box, values in zip(portion.boxes, torch.split(given, sizes)):
            window = self.shard.window(local, box)
            window.copy_(values.view(window.shape))

    def load(self, full: torch.Tensor) -> None:
        """Take this rank's part of a whole value."""
        with torch.no_grad():
            self.obtain()
            self.shard.tensor.data.copy_(self.shard.cut(full))
            self.parameter.copy_(self._own(self.shard.tensor.detach()))
            self.release()

    # Gradients

    def gradient(self) -> torch.Tensor:
        """Of the shares, zeros where no sum has come yet."""
        if self.parameter.grad is None:
            self.parameter.grad = torch.zeros_like(self.parameter)
        return self.parameter.grad

    def begin_step(self) -> None:
        """None of the step's gradients is summed yet."""
        self._unsummed = {number for number, portion in self.portions.items() if portion.is_shared}

    def given(self, piece: int) -> torch.Tensor:
        """The gradient of a piece, a row for each holder's share. With the last one the shard has none any more."""
        portion = self.portions[piece]
        flat = self._flat(portion, self.shard.own_gradient())
        self._unsummed.discard(piece)
        if not self._unsummed:
            self._keep_unshared()
            self.shard.tensor.grad = None
        missing = portion.num_holders * portion.width - portion.total
        padded = nn.functional.pad(flat, (0, missing)) if missing else flat
        return padded.view(portion.num_holders, portion.width)

    def take(self, piece: int, total: torch.Tensor) -> None:
        """The sum of all holders' gradients of this rank's share."""
        portion = self.portions[piece]
        self.gradient()[portion.place : portion.place + portion.size] = total[: portion.size]

    def _keep_unshared(self) -> None:
        for number, portion in self.portions.items():
            if not portion.is_shared:
                self.take(number, self._flat(portion, self.shard.gradient()))

    def owned(self, values: torch.Tensor) -> list[tuple[int, int, torch.Tensor]]:
        """(piece, first element, values) of this rank's shares, of the parameter or of its gradient."""
        found = ((number, p.first, values[p.place : p.place + p.size]) for number, p in self.portions.items())
        return [(number, first, each.to("cpu", copy=True)) for number, first, each in found]

    def _own(self, local: torch.Tensor) -> torch.Tensor:
        """This rank's shares of a local tensor, one after the other."""
        cut = [self._flat(p, local)[p.first : p.first + p.size] for p in self.portions.values()]
        return cut[0] if self._lies_within else torch.cat(cut)

    def _flat(self, portion: Portion, local: torch.Tensor) -> torch.Tensor:
        windows = [self.shard.window(local, box).reshape(-1) for box in portion.boxes]
        return torch.cat(windows) if len(windows) > 1 else windows[0]


def _portions(pieces: Sequence[Piece], device: int) -> dict[int, Portion]:
    found: dict[int, Portion] = {}
    place = 0
    for number, (holders, boxes) in enumerate(pieces):
        if device not in holders:
            continue
        total = sum(prod(lengths(box)) for box in boxes)
        width = -(-total // len(holders))
        first = min(list(holders).index(device) * width, total)
        found[number] = Portion(boxes, len(holders), total, width, first, min(width, total - first), place)
        place += found[number].size
    return found


class GatheredBucket:
    """The shares that one gather brings together: what this rank gives, and where all of it goes. They travel in the
    type in which they are used: those who read them would cast them to it anyway."""

    def __init__(self, sharded: Mapping[int, Sharded], event: Gather, dtype: torch.dtype) -> None:
        self._pieces = [(sharded[tensor], piece) for tensor, piece in event.pieces]
        self.flat = torch.cat([each.own(piece) for each, piece in self._pieces]).to(dtype)

    @property
    def gathered(self) -> list[Sharded]:
        return [each for each, _ in self._pieces]

    def take(self, pending: Pending) -> None:
        widths = [each.portions[piece].width for each, piece in self._pieces]
        for (each, piece), shares in zip(self._pieces, torch.split(pending(), widths, dim=1)):
            each.obtain()
            each.fill(piece, shares)


class ScatteredBucket:
    """The gradients that one sum leaves in shares, a row for each holder."""

    def __init__(self, sharded: Mapping[int, Sharded], event: Sync) -> None:
        self._pieces = [(sharded[tensor], piece) for tensor, piece in event.pieces]
        rows = [each.given(piece) for each, piece in self._pieces]
        self.rows = torch.cat(rows, dim=1) if len(rows) > 1 else rows[0]

    def take(self, pending: Pending) -> None:
        widths = [each.portions[piece].width for each, piece in self._pieces]
        for (each, piece), total in zip(self._pieces, torch.split(pending(), widths)):
            each.take(piece, total)


class SharedWeights:
    """When a device's weights come and go: which gathers each segment waits for, and what is given back after it."""

    def __init__(
        self,
        sharded: Mapping[int, Sharded],
        placement: Placement,
        segments: Sequence[Segment],
        program: Iterable[Event],
        *,
        stays: bool,
    ) -> None:
        self._sharded = sharded
        self._awaited: dict[tuple[int, bool], list[int]] = {}
        self._released: dict[Run, list[Sharded]] = {}
        self._pending: dict[tuple[int, int], tuple[GatheredBucket, Pending]] = {}  # by row and microbatch
        self._users: dict[Sharded, set[tuple[int, bool]]] = defaultdict(set)  # by microbatch and direction
        last: dict[tuple[int, bool, int], Run] = {}  # by tensor, direction and microbatch
        for event in program:
            if not isinstance(event, Run):
                continue
            rows = [key.row for key in segments[event.segment].takes if isinstance(key, Gathered)]
            again = [placement.again[row] for row in rows if row in placement.again]
            self._awaited[event.segment, event.backward] = again if event.backward else rows
            for row in rows:
                for tensor, _ in placement.native.task(row).pieces:
                    last[tensor, event.backward, event.microbatch] = event
        for (tensor, *_), event in () if stays else last.items():
            self._released.setdefault(event, []).append(sharded[tensor])

    def begin_step(self) -> None:
        self._pending.clear()  # what nobody waited for
        self._users.clear()
        for each in self._sharded.values():
            each.begin_step()

    def begin(self, event: Gather, bucket: GatheredBucket, pending: Pending) -> None:
        """A gather is on its way."""
        self._pending[event.first, event.microbatch] = bucket, pending

    def take(self, segment: int, microbatch: int, *, backward: bool) -> None:
        """Wait for what a segment reads."""
        for row in self._awaited[segment, backward]:
            if (row, microbatch) in self._pending:
                bucket, pending = self._pending.pop((row, microbatch))
                bucket.take(pending)
                for each in bucket.gathered:
                    self._users[each].add((microbatch, backward))

    def release(self, segment: int, microbatch: int, *, backward: bool) -> None:
        """What no later segment of this direction reads, and no other microbatch."""
        for each in self._released.get(Run(segment, backward, microbatch), ()):
            self._users[each].discard((microbatch, backward))
            if not self._users[each]:
                each.release()
