"""Checkpoints on disk: a safetensors file for each rank. torch.distributed.checkpoint plans which rank writes which
copy, and which rank reads which part. Its own file format is not used, since its files have to be unpickled."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import prod
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

import torch
from torch.distributed.checkpoint._dedup_save_plans import dedup_save_plans
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import SavePlan, TensorWriteData, WriteItem, WriteItemType
from torch.distributed.checkpoint.planner_helpers import create_read_items_for_chunk_list

from ...errors import RankError, SoapstoneError
from ...files import FILE_MODE, HALF
from ..casting import check_cast
from .boxes import Chunk
from .holdings import Holding, whole_holding
from .index import DamagedError, Index, Stored
from .tensorfile import DTYPES, Pin, TensorFile, name_of, write

Row = tuple[str, torch.dtype, Sequence[int], Sequence[int], Sequence[int]]  # name, type, shape, offsets, sizes


def file_of(rank: int) -> str:
    return f"rank-{rank:05}.safetensors"


def plan_of(held: Mapping[str, Holding]) -> SavePlan:
    """All that a rank could write."""
    return SavePlan([_write_item(name, holding, chunk) for name, holding in held.items() for chunk in holding.chunks])


def _write_item(name: str, holding: Holding, chunk: Chunk) -> WriteItem:
    return _planned(name, holding.dtype, holding.shape, chunk.offsets, chunk.sizes)


def _planned(
    name: str, dtype: torch.dtype, shape: Sequence[int], offsets: Sequence[int], sizes: Sequence[int]
) -> WriteItem:
    place = ChunkStorageMetadata(torch.Size(offsets), torch.Size(sizes))
    data = TensorWriteData(place, TensorProperties(dtype=dtype), torch.Size(shape))
    return WriteItem(MetadataIndex(name, place.offsets), WriteItemType.SHARD, tensor_data=data)


def rows_of(plan: SavePlan) -> list[Row]:
    """The rows from which another rank makes the same plan."""
    rows: list[Row] = []
    for item in plan.items:
        assert item.tensor_data is not None
        data, place = item.tensor_data, item.tensor_data.chunk
        rows.append((item.index.fqn, data.properties.dtype, data.size, place.offsets, place.sizes))
    return rows


def plan_from(rows: list[Row]) -> SavePlan:
    """The inverse of `rows_of`."""
    return SavePlan([_planned(*row) for row in rows])


def without_copies(plans: list[SavePlan]) -> list[SavePlan]:
    """What each rank writes, so that every element is written once and all write about as much."""
    found: list[SavePlan] = dedup_save_plans(plans)
    return found


def picked(plan: SavePlan, held: Mapping[str, Holding]) -> list[torch.Tensor]:
    """The values that a plan has a rank write, in its order."""
    chunks = {(name, chunk.offsets): chunk for name, holding in held.items() for chunk in holding.chunks}
    return [chunks[item.index.fqn, tuple(item.index.offset or ())].read() for item in plan.items]


def about(own: str, rank: int, ranks: int) -> dict[str, str]:
    """The metadata of a rank's file: the checkpoint that it belongs to, its rank, and the number of ranks."""
    return {"checkpoint": own, "rank": f"{rank} of {ranks}"}


def write_tensors(folder: Path, rank: int, ranks: int, own: str, values: list[torch.Tensor]) -> None:
    """A rank's file, of the checkpoint with such a name of its own. It has its own name once it is on disk."""
    half = folder / f"{HALF}{file_of(rank)}"
    write(half, values, about(own, rank, ranks))
    half.chmod(FILE_MODE)
    half.rename(folder / file_of(rank))


def sync(path: Path) -> None:
    """Wait until a file, or what a folder lists, is on disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


class Checkpoint:
    """One that was written whole. Raises SoapstoneError where its files are not what they should be."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.index = folder, Index.read(folder)
        self._files: dict[int, TensorFile] = {}

    def __enter__(self) -> Checkpoint:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for file in self._files.values():
            file.close()
        self._files.clear()

    def wanted(self, held: Mapping[str, Holding]) -> Mapping[str, Holding]:
        """The tensors of a rank that must be in this checkpoint."""
        return held

    def check(self, name: str, holding: Holding, *, convert: bool = False) -> None:
        """Raise RankError unless all of a tensor's boxes are there, in a type that is wanted or may be converted."""
        stored = self._stored(name)
        if stored.shape != holding.shape:
            found, wanted = list(stored.shape), list(holding.shape)
            raise RankError(f"{name!r} has shape {found} in the checkpoint, but {wanted} in the model")
        there = [0 for _ in holding.chunks]
        for part in _parts(name, stored, holding):
            there[part.box] += prod(part.sizes)
        if there != [prod(chunk.sizes) for chunk in holding.chunks]:
            raise RankError(f"the checkpoint {self.folder} has only a part of {name!r}; use an older one")
        dtype = DTYPES[stored.dtype]
        if dtype == holding.dtype:
            return
        said = f"{name!r} is {stored.dtype} in the checkpoint, but {name_of(holding.dtype)} in the model"
        if not dtype.is_floating_point or not holding.dtype.is_floating_point:
            raise RankError(f"{said}; build the model as it was saved")
        if not convert:
            raise RankError(f"{said}; --convert (convert=True) converts it")
        for part in _parts(name, stored, holding):
            check_cast(name, self._values(stored, part), holding.dtype, f"the checkpoint {self.folder}")

    def _stored(self, name: str) -> Stored:
        stored = self.index.tensors.get(name)
        if stored is None:
            raise RankError(f"the checkpoint {self.folder} has no {name!r}; it is of another model")
        return stored

    def read(self, name: str, holding: Holding) -> list[torch.Tensor]:
        """The values of a rank's boxes of a tensor, in their order and in the wanted type. `check` must have passed."""
        stored = self._stored(name)
        filled = [torch.empty(chunk.sizes, dtype=holding.dtype) for chunk in holding.chunks]
        missing = [buffer.numel() for buffer in filled]
        for part in _parts(name, stored, holding):
            filled[part.box][slices_of(part.target, part.sizes)].copy_(self._values(stored, part))
            missing[part.box] -= prod(part.sizes)
        assert not any(missing)
        return filled

    def whole(self, name: str) -> torch.Tensor:
        """A tensor, all of it."""
        stored = self.index.tensors.get(name)
        if stored is None or not stored.is_complete:
            raise RankError(f"the checkpoint {self.folder} has not all of {name!r}; use an older one")
        for rank in {rank for _, _, rank, _ in stored.chunks}:
            self._file(rank)  # check that its boxes are there before memory is allocated
        empty = torch.empty(stored.shape, dtype=DTYPES[stored.dtype], device="meta")
        return next(iter(self.read(name, whole_holding(empty))), torch.empty(stored.shape, dtype=empty.dtype))

    def verify(self, rank: int) -> None:
        """Read all of a rank's file. Raises RankError where it is not as it was written."""
        with self._blamed(rank):
            self._file(rank).verify()

    def _values(self, stored: Stored, part: Part) -> torch.Tensor:
        """Some elements of a box."""
        _, _, rank, number = stored.chunks[part.chunk]
        return self._file(rank).tensor(str(number))[slices_of(part.source, part.sizes)]

    def _file(self, rank: int) -> TensorFile:
        """A rank's file, which stays open."""
        if rank not in self._files:
            index = self.index
            said = about(index.own, rank, index.ranks)
            with self._blamed(rank):
                path = self.folder / file_of(rank)
                self._files[rank] = TensorFile(path, Pin(*index.files[rank]), said, index.rows_of(rank))
        return self._files[rank]

    @contextmanager
    def _blamed(self, rank: int) -> Iterator[None]:
        path = self.folder / file_of(rank)
        try:
            yield
        except DamagedError:
            raise
        except OSError as error:
            raise DamagedError(f"cannot read {path}: {error.strerror or error}") from None
        except SoapstoneError as error:
            raise DamagedError(f"cannot read {path}: {error}") from None


class Part(NamedTuple):
    """Elements that a wanted box and a stored one have in common: the boxes' numbers, the offsets in each, the
    sizes."""

    box: int
    chunk: int
    target: torch.Size
    source: torch.Size
    sizes: torch.Size


def _parts(name: str, stored: Stored, holding: Holding) -> Iterator[Part]:
    wanted = [ChunkStorageMetadata(torch.Size(c.offsets), torch.Size(c.sizes)) for c in holding.chunks]
    for item in create_read_items_for_chunk_list(name, _metadata(stored), wanted):
        numbers = item.dest_index.index or 0, item.storage_index.index or 0
        yield Part(*numbers, item.dest_offsets, item.storage_offsets, item.lengths)


def _metadata(stored: Stored) -> TensorStorageMetadata:
    chunks = [ChunkStorageMetadata(torch.Size(offsets), torch.Size(sizes)) for offsets, sizes, _, _ in stored.chunks]
    properties = TensorProperties(dtype=DTYPES[stored.dtype])
    return TensorStorageMetadata(properties, torch.Size(stored.shape), chunks)


def slices_of(offsets: torch.Size, sizes: torch.Size) -> tuple[slice, ...]:
    return tuple(slice(first, first + size) for first, size in zip(offsets, sizes))
