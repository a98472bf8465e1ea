"""Opens a folder that torch.distributed.checkpoint wrote, by FSDP2, DDP or a plain script, as a checkpoint to load."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

from ...errors import RankError
from ..agreement import agree
from ..store import Store
from ..transports import Transport
from .dcp_files import read_tensor, read_value
from .dcp_layout import model_keys, optimizer_layout
from .dcp_metadata import Contents, read_contents
from .dcp_names import Names, groups_of, kept_by, names_of
from .holdings import SINGLE, Holding
from .index import DamagedError, Index, Optimizer, Stored, plain_numbers
from .saving import HOW
from .storage import Checkpoint, Part, slices_of
from .tensorfile import DTYPES

_SCHEDULED = {"initial_lr", "swa_lr", "max_lr", "min_lr", "base_momentum", "max_momentum"}  # set by schedules
_LATER = {"decoupled_weight_decay", "maximize"}  # settings that older versions of torch did not have
_STEPS = ("step", "train_state.step")


def open_dcp(
    folder: Path, store: Store, transport: Transport, model: nn.Module, optimizer: torch.optim.Optimizer | None
) -> ForeignCheckpoint:
    """The folder as a checkpoint. Raises RankError on all ranks unless it has all values of the model and its
    optimizer."""
    contents = agree(transport, lambda: read_contents(folder))
    if len({*transport.exchange(contents.digest)}) > 1:
        raise RankError(f"ranks see different checkpoints at {folder}; name a folder that all of them share")
    names = names_of(store, model)
    groups = groups_of(store, transport, optimizer, names)
    source = _Source(folder, contents)
    found = agree(transport, lambda: _opened(source, store, names, optimizer, groups))
    found.index = replace(found.index, step=max(transport.exchange(found.index.step)))  # of a rank that knows it
    return found


class _Source(NamedTuple):
    """Reads values of a folder by key."""

    folder: Path
    contents: Contents

    def tensor(self, key: str) -> Stored:
        stored = self.contents.tensors[key]
        if not stored.is_complete:
            raise DamagedError(f"{self.folder} has only a part of {key!r}; use another folder")
        return stored

    def value(self, key: str) -> Any:
        """A value that is not a tensor, or the number in a tensor of one element."""
        if key in self.contents.values:
            return read_value(self.folder, self.contents.values[key])
        stored = self.tensor(key)
        if stored.shape:
            raise RankError(f"{key!r} in {self.folder} is a tensor, not a number; use another folder")
        return read_tensor(self.folder, self.contents.locations[stored.chunks[0][3]], DTYPES[stored.dtype], ())

    def count(self, key: str) -> int:
        found = self.value(key)
        if not isinstance(found, torch.Tensor) or found.dtype != torch.int64:
            raise RankError(f"{key!r} in {self.folder} is not a count; build the model as it was saved")
        return int(found)

    def step(self) -> int | None:
        """The step of the training; None if the folder does not have one."""
        for key in _STEPS:
            if key in self.contents.tensors and not self.contents.tensors[key].shape:
                return int(self.value(key))
        found = self.value("step") if "step" in self.contents.values else None
        return found if type(found) is int else None


class ForeignCheckpoint(Checkpoint):
    """A DCP folder, with an index that is made from its metadata. A tied weight may have several keys."""

    def __init__(self, source: _Source, index: Index, tied: Mapping[str, Sequence[str]]) -> None:
        self.folder, self.index = source.folder, index
        self._files = {}
        self._contents, self._tied = source.contents, tied
        self._last: tuple[int, torch.Tensor] | None = None  # the box that was read last, since more of it may be needed

    def wanted(self, held: Mapping[str, Holding]) -> dict[str, Holding]:
        """All tensors except buffers that are not persistent, which no state dict has."""
        return {
            name: each for name, each in held.items() if not name.startswith("model/") or name in self.index.tensors
        }

    def check(self, name: str, holding: Holding, *, convert: bool = False) -> None:
        super().check(name, holding, convert=convert)
        values = self.read(name, holding)  # each byte is checked before anything changes
        for other in self._tied.get(name, ()):
            super().check(other, holding, convert=convert)
            pairs = zip(values, self.read(other, holding))
            if not all(torch.equal(one.nan_to_num(), two.nan_to_num()) for one, two in pairs):
                raise RankError(
                    f"{other!r} in {self.folder} differs from a key that is one tensor with it in the model"
                )

    def _values(self, stored: Stored, part: Part) -> torch.Tensor:
        _, sizes, _, number = stored.chunks[part.chunk]
        if self._last is None or self._last[0] != number:
            self._last = None  # free its memory before the next one is read
            place = self._contents.locations[number]
            self._last = number, read_tensor(self.folder, place, DTYPES[stored.dtype], sizes)
        return self._last[1][slices_of(part.source, part.sizes)]


def _opened(
    source: _Source, store: Store, names: Names, optimizer: torch.optim.Optimizer | None, groups: list[list[str]]
) -> ForeignCheckpoint:
    keys = model_keys(source.contents, names, source.folder)
    tensors = {f"model/{name}": source.tensor(key) for name, (key, *_) in keys.items()}
    tied = {f"model/{name}": others for name, (_, *others) in keys.items() if others}
    tensors |= {other: source.tensor(other) for others in tied.values() for other in others}
    counters = {name: source.count(keys[name][0]) for name in store.counters if name in keys}
    step, saved = source.step(), None
    if optimizer is not None:
        saved, kept = _optimizer(source, store, optimizer, names, groups)
        tensors |= kept
        step = _last_step(saved) if step is None else step
    own = {name: first for first, several in names.items() for name in several}
    return ForeignCheckpoint(source, Index("", step or 0, {}, counters, own, tensors, optimizer=saved), tied)


def _optimizer(
    source: _Source, store: Store, optimizer: torch.optim.Optimizer, names: Names, groups: list[list[str]]
) -> tuple[Optimizer, dict[str, Stored]]:
    """The optimizer's state for this rank's parameters, and where its tensors are."""
    states, given = optimizer_layout(source.contents, names, groups, source.value, source.folder)
    settings = [_settings(optimizer, i, row, source.folder) for i, row in enumerate(given)]
    group = {name: i for i, members in enumerate(groups) for name in members}
    shapes = {shard.name: tuple(store.graph.tensors[i].shape) for i, shard in store.shards.items()}
    state, numbers, tensors = dict[str, tuple[str, ...]](), dict[str, dict[str, Any]](), dict[str, Stored]()
    expected = cache(lambda i, ndim: kept_by(optimizer, i, settings[i], ndim))
    for name in (name for name, _ in store.parameters() if name in group):
        keys, shape = states.get(name, {}), shapes[name]
        _check_state(
            source.folder,
            name,
            {*keys},
            expected(group[name], len(shape)),
            {what for row in states.values() for what in row},
        )
        is_number = {what: _is_number(source.contents.tensors.get(key), what, shape) for what, key in keys.items()}
        state[name] = tuple(keys)
        tensors |= {f"optimizer/{what}/{name}": source.tensor(key) for what, key in keys.items() if not is_number[what]}
        numbers[name] = plain_numbers({what: source.value(key) for what, key in keys.items() if is_number[what]})
        if len(numbers[name]) < sum(is_number.values()):
            raise RankError(
                f"the optimizer of {source.folder} keeps a value that is not a number for {name!r}; load without it"
            )
    return Optimizer(type(optimizer).__name__, state, numbers, tuple(settings)), tensors


def _is_number(stored: Stored | None, what: str, shape: tuple[int, ...]) -> bool:
    """Whether a value of the optimizer's state is one number, as opposed to a tensor of the parameter's shape."""
    return stored is None or (not stored.shape and (bool(shape) or what in SINGLE))


def _last_step(saved: Optimizer) -> int:
    steps = [row["step"] for row in saved.numbers.values() if "step" in row]
    return max((int(each["value"] if isinstance(each, dict) else each) for each in steps), default=0)


def _settings(optimizer: torch.optim.Optimizer, i: int, given: dict[str, Any], folder: Path) -> dict[str, Any]:
    """A group's settings. Raises RankError unless an optimizer of this class has the same ones: a folder does not name
    the class."""
    kind, own = type(optimizer).__name__, optimizer.param_groups[i]
    found = {what: value for what, value in given.items() if what not in HOW}
    if not given:  # a group without parameters
        return {}
    differ = found.keys() - own.keys() - _SCHEDULED | optimizer.defaults.keys() - found.keys() - {*HOW} - _LATER
    if differ:
        raise RankError(
            f"{folder} was saved with another optimizer than {kind}: only one of them has {min(differ)!r}; use "
            "that one, or load without an optimizer"
        )
    decoupled = "decoupled_weight_decay"  # the setting in which Adam and AdamW differ
    if decoupled in found and found[decoupled] != own.get(decoupled):
        raise RankError(f"{folder} has {decoupled}={found[decoupled]}, which {kind} has not; use its optimizer")
    plain = plain_numbers(found)
    for what in sorted(found.keys() - plain.keys()):
        raise RankError(f"{what!r} of the optimizer in {folder} is not a number; load without an optimizer")
    return plain


def _check_state(folder: Path, name: str, found: set[str], expected: set[str] | None, any_has: set[str]) -> None:
    wanted = any_has if expected is None else expected
    for what in sorted(found ^ wanted):
        least = "does not have" if what in wanted else "has, which this one does not keep,"
        raise RankError(
            f"the optimizer of {folder} {least} {what!r} of {name!r}; use another folder, or load without it"
        )
