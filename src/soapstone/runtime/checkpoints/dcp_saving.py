"""Writes a folder that torch.distributed.checkpoint reads. All ranks of a training write it together, or one process
writes it from a checkpoint. The keys are those of `{"model": ..., "optim": ...}` with the results of get_state_dict."""

from __future__ import annotations

import os
import pickle
import shutil
from collections import defaultdict
from collections.abc import Mapping, Sequence
from math import prod
from pathlib import Path
from typing import Any
from uuid import uuid4

import torch
from torch import nn
from torch.distributed.checkpoint.filesystem import CURRENT_DCP_VERSION, _StorageInfo
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    StorageMeta,
    TensorProperties,
    TensorStorageMetadata,
)

from ...errors import RankError, SoapstoneError
from ...files import HALF
from ..agreement import agree
from ..store import Store
from ..transports import Transport
from .boxes import Chunk, remainder
from .dcp_files import file_of, write_file
from .dcp_metadata import METADATA
from .dcp_names import Names, groups_of, kept_by, names_of
from .holdings import Holding, held, unread, whole_holding
from .index import Index, Optimizer, Stored
from .optimizers import collected, state_on_rank
from .saving import described_optimizer
from .storage import Checkpoint, Row, picked, plan_from, plan_of, rows_of, sync, without_copies
from .tensorfile import DTYPES

Route = tuple[str | int, ...]  # the path to a value in nested dicts and lists; joined by dots it is the value's key
_NEUTRAL = {"foreach": None, "fused": None, "capturable": False, "differentiable": False}  # how to compute, not what
_NO_VALUES = torch.empty(0)


class _Keys:
    """The keys of a folder, each with its route, and the other keys of each tied weight."""

    def __init__(self, names: Names) -> None:
        self._names = names
        self.routes: dict[str, Route] = {}
        self.others: dict[str, list[str]] = {}

    def add(self, *route: str | int) -> str:
        key = ".".join(map(str, route))
        self.routes[key] = route
        return key

    def of(self, place: str) -> str | None:
        """The key of a checkpoint's tensor; None for a buffer that is not persistent."""
        kind, _, rest = place.partition("/")
        if kind == "model":
            return self._of_model(rest)
        what, _, name = rest.partition("/")
        return self.add("optim", "state", self._names[name][0], what)

    def _of_model(self, name: str) -> str | None:
        if name not in self._names:
            return None
        first, *others = (self.add("model", each) for each in self._names[name])
        self.others[first] = others
        return first

    def numbers(
        self, counters: Mapping[str, int], optimizer: Optimizer | None, groups: Sequence[Sequence[str]], step: int
    ) -> dict[str, Any]:
        """All values but the tensors of the checkpoint, by key: numbers as tensors of one element, and other values."""
        found: dict[str, Any] = {self.add("step"): step}
        for name, count in counters.items():
            key = self._of_model(name)
            found |= {} if key is None else {key: torch.tensor(count)}
        if optimizer is None:
            return found
        for name, row in optimizer.numbers.items():
            found |= {self.add("optim", "state", self._names[name][0], what): _value(v) for what, v in row.items()}
        for i, (settings, members) in enumerate(zip(optimizer.groups, groups)):
            row = {**settings, **_how(optimizer.kind)}
            found |= {self.add("optim", "param_groups", i, what): _value(value) for what, value in row.items()}
            found[self.add("optim", "param_groups", i, "params")] = [self._names[name][0] for name in members]
        return found


def _value(plain: Any) -> Any:
    """The inverse of plain_numbers, for one value."""
    if isinstance(plain, dict):
        return torch.tensor(plain["value"], dtype=DTYPES[plain["dtype"]])
    return tuple(plain) if isinstance(plain, list) else plain


def _how(kind: str) -> dict[str, Any]:
    """Settings of how torch's optimizer of this name computes, with neutral values. Readers of its state expect
    them."""
    maker = getattr(torch.optim, kind, None)
    if maker is None:
        return {}
    known = maker([nn.Parameter(torch.zeros(1, 1))]).defaults
    return {what: value for what, value in _NEUTRAL.items() if what in known}


def save_dcp(
    folder: Path,
    store: Store,
    transport: Transport,
    model: nn.Module,
    optimizer: torch.optim.Optimizer | None,
    step: int,
) -> None:
    """Write the present state, each rank its own part. Raises RankError on all ranks if one cannot."""
    first = transport.rank == 0
    agree(transport, lambda: check_new(folder) if first else None)
    names = names_of(store, model)
    groups = groups_of(store, transport, optimizer, names)
    state = collected(transport.exchange(agree(transport, lambda: state_on_rank(store, optimizer))))
    described, keys = described_optimizer(optimizer, state), _Keys(names)
    if optimizer is not None and any(groups) and not state.names and kept_by(optimizer, 0, {}, 1):
        raise RankError("the optimizer has no state yet, which FSDP2 would need; save after a step, or save without it")
    numbers = keys.numbers({name: int(count) for name, count in store.counters.items()}, described, groups, step)
    here = agree(transport, lambda: _held(store, model, optimizer, keys, numbers, is_first=first))
    everyone = transport.exchange(agree(transport, lambda: rows_of(plan_of(here))))
    plans = without_copies([plan_from(rows) for rows in everyone])
    rows = [rows_of(plan) for plan in plans]
    missing = _missing(rows)
    values = {key: value for key, value in numbers.items() if not isinstance(value, torch.Tensor)}
    tensors = picked(plans[transport.rank], here)
    own = [*tensors, *map(_zeros, missing), *values.values()] if first else tensors
    rows[0] += missing
    empty = {key: each for key, each in here.items() if not each.chunks}
    half = folder.with_name(f"{HALF}{folder.name}-{transport.exchange(uuid4().hex)[0]}")
    try:
        agree(transport, lambda: _make(half) if first else None)
        places = transport.exchange(agree(transport, lambda: _written(half, transport.rank, own)))
        agree(transport, lambda: _finish(folder, half, keys, rows, places, [*values], empty) if first else None)
    finally:
        if first:
            shutil.rmtree(half, ignore_errors=True)


def _held(
    store: Store, model: nn.Module, optimizer: torch.optim.Optimizer | None, keys: _Keys, numbers: Mapping[str, Any],
    *, is_first: bool,
) -> dict[str, Holding]:  # fmt: skip
    """All that this rank could write, by key. Rank 0 has the elements that no rank reads, and the numbers."""
    found = {key: each for place, each in held(store, optimizer).items() if (key := keys.of(place)) is not None}
    for place, holding in unread(store, model).items():
        key = keys.of(place)
        if key is not None and is_first:
            others = found[key].chunks if key in found else []
            found[key] = holding._replace(chunks=[*others, *holding.chunks])
    if is_first:
        found |= {key: whole_holding(value) for key, value in numbers.items() if isinstance(value, torch.Tensor)}
    return found


def _missing(rows: Sequence[Sequence[Row]]) -> list[Row]:
    """The elements of an optimizer's tensors that no rank has, because their weights are not read: they are zero.
    Raises RankError if elements of a weight are missing."""
    boxes: dict[tuple[Any, ...], list[Any]] = defaultdict(list)
    for key, dtype, shape, offsets, sizes in (row for own in rows for row in own):
        boxes[key, dtype, tuple(shape)].append([(first, first + size) for first, size in zip(offsets, sizes)])
    found: list[Row] = []
    for (key, dtype, shape), own in boxes.items():
        if sum(prod(hi - lo for lo, hi in box) for box in own) == prod(shape):
            continue
        if key.startswith("model."):
            raise RankError(
                f"no rank has all of {key.removeprefix('model.')!r}; give the model values before it is saved"
            )
        for box in remainder(shape, own):
            found.append((key, dtype, shape, tuple(lo for lo, _ in box), tuple(hi - lo for lo, hi in box)))
    return found


def _zeros(row: Row) -> torch.Tensor:
    return torch.zeros(tuple(row[4]), dtype=row[1])


def convert(checkpoint: Checkpoint, folder: Path) -> tuple[int, int]:
    """Write a checked checkpoint as such a folder, one box at a time. Returns the number of the model's tensors, and
    the bytes of all tensors. Raises SoapstoneError if that is not possible."""
    check_new(folder)
    index = checkpoint.index
    names: dict[str, tuple[str, ...]] = {}
    for name, own in index.names.items():
        names[own] = (*names.get(own, ()), name)
    keys = _Keys(names)
    numbers = keys.numbers(index.counters, index.optimizer, _groups(index, names), index.step)
    placed = [(place, stored) for place, stored in index.tensors.items() if keys.of(place) is not None]
    rows: list[Row] = [
        (str(keys.of(place)), DTYPES[stored.dtype], stored.shape, offsets, sizes)
        for place, stored in placed
        for offsets, sizes, _, _ in stored.chunks
    ]
    boxes = [(place, stored, chunk[0], chunk[1]) for place, stored in placed for chunk in stored.chunks]
    missing = _missing([rows])
    scalars = {key: value for key, value in numbers.items() if isinstance(value, torch.Tensor)}
    values = {key: value for key, value in numbers.items() if key not in scalars}
    rows += [*missing, *((key, each.dtype, (), (), ()) for key, each in scalars.items())]
    empty = {str(keys.of(p)): Holding(s.shape, DTYPES[s.dtype], []) for p, s in placed if not s.chunks}
    half = folder.with_name(f"{HALF}{folder.name}-{uuid4().hex}")
    try:
        _make(half)
        tensors = (_box(checkpoint, *each) for each in boxes)
        every = (each for part in (tensors, map(_zeros, missing), scalars.values(), values.values()) for each in part)
        with checkpoint:
            places = write_file(half / file_of(0), every)
        _finish(folder, half, keys, [rows], [places], [*values], empty)
    except OSError as error:
        raise SoapstoneError(f"cannot write {folder}: {error.strerror}; name another folder") from None
    finally:
        shutil.rmtree(half, ignore_errors=True)
    return len(index.names), sum(length for _, length in places)


def _box(
    checkpoint: Checkpoint, place: str, stored: Stored, offsets: tuple[int, ...], sizes: tuple[int, ...]
) -> torch.Tensor:
    wanted = Holding(stored.shape, DTYPES[stored.dtype], [Chunk(offsets, sizes, _NO_VALUES)])
    return checkpoint.read(place, wanted)[0]


def _groups(index: Index, names: Names) -> list[list[str]]:
    """The parameters of the optimizer's groups. A checkpoint does not record them, so there may be only one group."""
    if index.optimizer is None:
        return []
    if len(index.optimizer.groups) > 1:
        number = len(index.optimizer.groups)
        raise SoapstoneError(
            f"the optimizer has {number} parameter groups, and a checkpoint does not record which parameters each has; "
            "save the folder from the training, by parallel.save_dcp"
        )
    return [
        [
            name
            for name in names
            if name in index.optimizer.state or (not index.optimizer.state and name not in index.counters)
        ]
    ]


def check_new(folder: Path) -> None:
    """Raise SoapstoneError unless a folder is empty or does not exist."""
    try:
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise SoapstoneError(f"{folder} exists already; name another folder")
    except OSError as error:
        raise SoapstoneError(f"cannot write {folder}: {error.strerror}; name another folder") from None


def _make(half: Path) -> None:
    try:
        half.mkdir(parents=True)
    except OSError as error:
        raise RankError(f"cannot write {half.parent}: {error.strerror}; name another folder") from None


def _written(half: Path, rank: int, values: Sequence[Any]) -> list[tuple[int, int]]:
    try:
        return write_file(half / file_of(rank), values)
    except (OSError, RuntimeError) as error:  # torch reports a full disk as a RuntimeError
        said = getattr(error, "strerror", None) or str(error).split("\n")[0]
        raise RankError(f"cannot write to {half.parent}: {said}; make room there") from None


def _finish(
    folder: Path, half: Path, keys: _Keys, rows: Sequence[Sequence[Row]], places: Sequence[Sequence[tuple[int, int]]],
    values: Sequence[str], empty: Mapping[str, Holding],
) -> None:  # fmt: skip
    """Write the metadata, and give the folder its name. The values are in the first file, after its tensors."""
    metadata: dict[str, Any] = {
        key: TensorStorageMetadata(TensorProperties(dtype=each.dtype), torch.Size(each.shape), [])
        for key, each in empty.items()
    }
    storage: dict[MetadataIndex, _StorageInfo] = {}
    for rank, (own, where) in enumerate(zip(rows, places)):
        for (key, dtype, shape, offsets, sizes), place in zip(own, where):
            for name in (key, *keys.others.get(key, ())):
                new = TensorStorageMetadata(TensorProperties(dtype=dtype), torch.Size(shape), [])
                chunks = metadata.setdefault(name, new).chunks
                storage[MetadataIndex(name, torch.Size(offsets), len(chunks))] = _StorageInfo(file_of(rank), *place)
                chunks.append(ChunkStorageMetadata(torch.Size(offsets), torch.Size(sizes)))
    for key, place in zip(values, places[0][len(rows[0]) :]):
        metadata[key] = BytesStorageMetadata()
        storage[MetadataIndex(key)] = _StorageInfo(file_of(0), *place)
    routes = {key: route for key, route in keys.routes.items() if key in metadata}
    found = Metadata(metadata, routes, storage, StorageMeta(), CURRENT_DCP_VERSION)
    try:
        (half / METADATA).write_bytes(pickle.dumps(found))
        for path in (half / METADATA, half):
            sync(path)
        if folder.exists():
            folder.rmdir()  # it is empty
        os.rename(half, folder)
    except OSError as error:
        raise RankError(f"cannot write {folder}: {error.strerror}; name another folder") from None
