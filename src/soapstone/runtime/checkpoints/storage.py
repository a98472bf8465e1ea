"""Checkpoints on disk: a file of tensors for each rank, as safetensors has them, and one of JSON that says where
everything is. Who writes what of several copies, and who reads which part of what, is torch.distributed.checkpoint's to
plan; its own files would have to be unpickled."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
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
from ...files import read_json, version, write_atomically
from .boxes import Chunk
from .holdings import Holding

INDEX = "checkpoint.json"
FORMAT = 1


def file_of(rank: int) -> str:
    return f"rank-{rank:05}.safetensors"


def plan_of(held: Mapping[str, Holding]) -> SavePlan:
    """All that a rank could write."""
    return SavePlan([_write_item(name, holding, chunk) for name, holding in held.items() for chunk in holding.chunks])


def _write_item(name: str, holding: Holding, chunk: Chunk) -> WriteItem:
    place = ChunkStorageMetadata(torch.Size(chunk.offsets), torch.Size(chunk.sizes))
    data = TensorWriteData(place, TensorProperties(dtype=holding.dtype), torch.Size(holding.shape))
    return WriteItem(MetadataIndex(name, place.offsets), WriteItemType.SHARD, tensor_data=data)


def without_copies(plans: list[SavePlan]) -> list[SavePlan]:
    """What each rank writes, so that every element is written once and all write about as much."""
    found: list[SavePlan] = dedup_save_plans(plans)
    return found


def write_tensors(folder: Path, rank: int, plan: SavePlan, held: Mapping[str, Holding]) -> None:
    """A rank's file, on disk when this returns."""
    chunks = {(name, chunk.offsets): chunk for name, holding in held.items() for chunk in holding.chunks}
    picked = [chunks[item.index.fqn, tuple(item.index.offset or ())] for item in plan.items]
    tensors = {str(number): chunk.read().to("cpu").contiguous() for number, chunk in enumerate(picked)}
    path = folder / file_of(rank)
    save_file(tensors, path)
    with path.open("rb") as file:
        os.fsync(file.fileno())


def write_index(folder: Path, plans: list[SavePlan], facts: Mapping[str, Any]) -> None:
    """Where everything is, and the numbers that are no tensors."""
    tensors: dict[str, Any] = {}
    for rank, plan in enumerate(plans):
        for number, item in enumerate(plan.items):
            data = item.tensor_data
            assert data is not None
            row = {"dtype": str(data.properties.dtype).removeprefix("torch."), "shape": list(data.size), "chunks": []}
            place = [list(data.chunk.offsets), list(data.chunk.sizes), rank, number]
            tensors.setdefault(item.index.fqn, row)["chunks"].append(place)
    content = {"format": FORMAT, "soapstone": version(), "ranks": len(plans), **facts, "tensors": tensors}
    write_atomically(folder / INDEX, json.dumps(content))


class Checkpoint:
    """One that was written whole. Raises SoapstoneError where its files are not what they should be."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.facts = folder, read_json(folder / INDEX)
        if not isinstance(self.facts, dict) or self.facts.get("format") != FORMAT:
            raise RankError(f"{folder / INDEX} is no checkpoint of this version of soapstone; save it anew")
        try:
            self._tensors = {name: _stored(row) for name, row in self.facts["tensors"].items()}
        except (AttributeError, KeyError, TypeError, ValueError):
            raise RankError(f"{folder / INDEX} is damaged; use an older checkpoint") from None

    @property
    def names(self) -> list[str]:
        return list(self._tensors)

    def check(self, name: str, holding: Holding) -> None:
        """Raise RankError where a tensor is not there as it is wanted."""
        if name not in self._tensors:
            raise RankError(f"the checkpoint {self.folder} has no {name!r}; it is of another model")
        stored, _ = self._tensors[name]
        if tuple(stored.size) != holding.shape:
            found, wanted = list(stored.size), list(holding.shape)
            raise RankError(f"{name!r} has shape {found} in the checkpoint, but {wanted} in the model")

    def read_all(self, held: Mapping[str, Holding]) -> None:
        for name, holding in held.items():
            self.check(name, holding)
            self._read(name, holding)

    def _read(self, name: str, holding: Holding) -> None:
        """Fill a rank's boxes of a tensor."""
        stored, places = self._tensors[name]
        wanted = [ChunkStorageMetadata(torch.Size(c.offsets), torch.Size(c.sizes)) for c in holding.chunks]
        filled = [torch.empty(chunk.sizes, dtype=holding.dtype) for chunk in holding.chunks]
        missing = [buffer.numel() for buffer in filled]
        for item in create_read_items_for_chunk_list(name, stored, wanted):
            number, source = item.dest_index.index or 0, places[item.storage_index.index or 0]
            target = filled[number][_slices(item.dest_offsets, item.lengths)]
            target.copy_(self._part(source, _slices(item.storage_offsets, item.lengths)))
            missing[number] -= target.numel()
        if any(missing):
            raise RankError(f"the checkpoint {self.folder} has only a part of {name!r}; use an older one")
        for chunk, buffer in zip(holding.chunks, filled):
            chunk.write(buffer)

    def _part(self, source: tuple[int, int], slices: tuple[slice, ...]) -> torch.Tensor:
        rank, number = source
        path = self.folder / file_of(rank)
        try:
            with safe_open(path, framework="pt") as file:
                found: torch.Tensor = file.get_slice(str(number))[slices] if slices else file.get_tensor(str(number))
                return found
        except (OSError, SafetensorError) as error:
            raise RankError(f"cannot read {path}: {error}; use an older checkpoint") from None


def _stored(row: Mapping[str, Any]) -> tuple[TensorStorageMetadata, list[tuple[int, int]]]:
    chunks = [ChunkStorageMetadata(torch.Size(offsets), torch.Size(sizes)) for offsets, sizes, _, _ in row["chunks"]]
    properties = TensorProperties(dtype=getattr(torch, row["dtype"]))
    places = [(int(rank), int(number)) for _, _, rank, number in row["chunks"]]
    return TensorStorageMetadata(properties, torch.Size(row["shape"]), chunks), places


def _slices(offsets: torch.Size, sizes: torch.Size) -> tuple[slice, ...]:
    return tuple(slice(first, first + size) for first, size in zip(offsets, sizes))
