"""Checkpoints on disk: a file of tensors for each rank, as safetensors has them. Who writes what of several copies, and
who reads which part of what, is torch.distributed.checkpoint's to plan; its own files would have to be unpickled."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch.distributed.checkpoint._dedup_save_plans import dedup_save_plans
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import SavePlan, TensorWriteData, WriteItem, WriteItemType
from torch.distributed.checkpoint.planner_helpers import create_read_items_for_chunk_list

from ...errors import RankError
from ...files import FILE_MODE, HALF
from .boxes import Chunk
from .holdings import Holding, whole_holding
from .index import Index, Place, Stored

Row = tuple[str, torch.dtype, Sequence[int], Sequence[int], Sequence[int]]  # name, type, shape, offsets, sizes
_SUM, _OF = "sum", "of"  # of all of a file's tensors; the checkpoint that it belongs to


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
    """What another rank needs to make the same."""
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


def write_tensors(folder: Path, rank: int, own: str, values: list[torch.Tensor]) -> None:
    """A rank's file, of the checkpoint with such a name of its own. It has its own name once it is on disk."""
    half = folder / f"{HALF}{file_of(rank)}"
    tensors = [tensor.to("cpu").contiguous() for tensor in values]
    save_file(
        {str(number): tensor for number, tensor in enumerate(tensors)}, half, {_SUM: _checksum(tensors), _OF: own}
    )
    half.chmod(FILE_MODE)
    sync(half)
    half.rename(folder / file_of(rank))


def _checksum(tensors: Iterable[torch.Tensor]) -> str:
    """The sum of all words, which any flipped bit changes. It reads memory as fast as that goes; crc32 takes as long as
    the disk does."""
    total = 0
    for tensor in tensors:
        raw = tensor.reshape(-1).view(torch.uint8)
        words = raw.numel() // 8 * 8
        if raw.storage_offset() % 8:
            raw = raw.clone()
        total += int(raw[:words].view(torch.int64).sum()) + int(raw[words:].sum())
    return f"{total % 2**64:016x}"


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
        self._files: dict[int, Any] = {}
        self._stack = ExitStack()

    def __enter__(self) -> Checkpoint:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._files.clear()
        self._stack.close()

    def check(self, name: str, holding: Holding) -> None:
        """Raise RankError where a tensor is not there as it is wanted."""
        stored = self.index.tensors.get(name)
        if stored is None:
            raise RankError(f"the checkpoint {self.folder} has no {name!r}; it is of another model")
        if stored.shape != holding.shape:
            found, wanted = list(stored.shape), list(holding.shape)
            raise RankError(f"{name!r} has shape {found} in the checkpoint, but {wanted} in the model")

    def read(self, name: str, holding: Holding) -> list[torch.Tensor]:
        """What a rank's boxes of a tensor hold here, in their order."""
        self.check(name, holding)
        stored = self.index.tensors[name]
        wanted = [ChunkStorageMetadata(torch.Size(c.offsets), torch.Size(c.sizes)) for c in holding.chunks]
        filled = [torch.empty(chunk.sizes, dtype=holding.dtype) for chunk in holding.chunks]
        missing = [buffer.numel() for buffer in filled]
        for item in create_read_items_for_chunk_list(name, _metadata(stored), wanted):
            number, place = item.dest_index.index or 0, stored.chunks[item.storage_index.index or 0]
            target = filled[number][_slices(item.dest_offsets, item.lengths)]
            target.copy_(self._part(place, _slices(item.storage_offsets, item.lengths)))
            missing[number] -= target.numel()
        if any(missing):
            raise RankError(f"the checkpoint {self.folder} has only a part of {name!r}; use an older one")
        return filled

    def whole(self, name: str) -> torch.Tensor:
        """A tensor, all of it."""
        stored = self.index.tensors.get(name)
        if stored is None or not stored.is_complete:
            raise RankError(f"the checkpoint {self.folder} has not all of {name!r}; use an older one")
        for place in stored.chunks:
            self._part(place, tuple(slice(0, 0) for _ in stored.shape))  # that they are there, before memory is taken
        found = torch.empty(stored.shape, dtype=getattr(torch, stored.dtype))
        for chunk, values in zip(whole_holding(found).chunks, self.read(name, whole_holding(found))):
            chunk.write(values)
        return found

    def verify(self, rank: int) -> None:
        """Read all of a rank's file. Raises RankError where it is not as it was written."""
        places = [place for stored in self.index.tensors.values() for place in stored.chunks if place[2] == rank]
        with self._reading(rank) as file:
            sizes = {str(number): list(sizes) for _, sizes, _, number in places}
            found = _checksum(file.get_tensor(str(number)) for number in range(len(sizes)))
            said = file.metadata() or {}
            if said.get(_SUM) != found:
                raise SafetensorError("its numbers are not those that were written")
            if said.get(_OF) != self.index.own:
                raise SafetensorError("it is of another checkpoint")
            if {key: file.get_slice(key).get_shape() for key in file.keys()} != sizes:  # noqa: SIM118
                raise SafetensorError("it is not of this checkpoint")

    def _part(self, place: Place, slices: tuple[slice, ...]) -> torch.Tensor:
        """Some elements of a box."""
        _, sizes, rank, number = place
        with self._reading(rank) as file:
            found = file.get_slice(str(number)) if slices else file.get_tensor(str(number))
            if tuple(found.get_shape() if slices else found.shape) != sizes:
                raise SafetensorError("it is not of this checkpoint")
            values: torch.Tensor = found[slices] if slices else found
            return values

    @contextmanager
    def _reading(self, rank: int) -> Iterator[Any]:
        """A rank's file, which stays open."""
        path = self.folder / file_of(rank)
        try:
            if rank not in self._files:
                self._files[rank] = self._stack.enter_context(safe_open(path, framework="pt"))
            yield self._files[rank]
        except (OSError, SafetensorError, RuntimeError) as error:
            raise RankError(f"cannot read {path}: {error}; remove {self.folder} to use the one before") from None


def _metadata(stored: Stored) -> TensorStorageMetadata:
    chunks = [ChunkStorageMetadata(torch.Size(offsets), torch.Size(sizes)) for offsets, sizes, _, _ in stored.chunks]
    properties = TensorProperties(dtype=getattr(torch, stored.dtype))
    return TensorStorageMetadata(properties, torch.Size(stored.shape), chunks)


def _slices(offsets: torch.Size, sizes: torch.Size) -> tuple[slice, ...]:
    return tuple(slice(first, first + size) for first, size in zip(offsets, sizes))
