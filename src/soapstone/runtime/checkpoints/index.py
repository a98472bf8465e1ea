"""What a checkpoint says of itself, in JSON: where each box of each tensor is, and the numbers that are no tensors."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.planner import SavePlan

from ...errors import RankError, SoapstoneError
from ...files import decode, encode, num_values, read_json, shortened, version, write_atomically
from .holdings import Holding

NAME = "checkpoint.json"
FORMAT = 3
MAX_BYTES, MAX_VALUES = 2**30, 2**26  # some nine for each box
_KEYS = ("format", "soapstone")

Place = tuple[
    tuple[int, ...], tuple[int, ...], int, int
]  # offsets and sizes of a box, its rank's file, its number there


@dataclass(frozen=True)
class Stored:
    """A tensor's type and shape, and where its boxes are."""

    dtype: str
    shape: tuple[int, ...]
    chunks: tuple[Place, ...]

    def __post_init__(self) -> None:
        if not isinstance(getattr(torch, self.dtype, None), torch.dtype):
            raise SoapstoneError(f"{shortened(self.dtype)} is no type of numbers")
        for offsets, sizes, rank, number in self.chunks:
            fits = len(offsets) == len(sizes) == len(self.shape) and min(rank, number, *offsets, *sizes) >= 0
            if not fits or any(first + size > end for first, size, end in zip(offsets, sizes, self.shape)):
                raise SoapstoneError(f"a box of {shortened(sizes)} is not inside of its tensor")

    @property
    def is_complete(self) -> bool:
        return sum(prod(sizes) for _, sizes, _, _ in self.chunks) == prod(self.shape)


@dataclass(frozen=True)
class Optimizer:
    """Its class, the numbers that it keeps for a parameter, and the settings of its groups."""

    kind: str
    numbers: dict[str, dict[str, Any]]
    groups: tuple[dict[str, Any], ...]


@dataclass(frozen=True)
class Index:
    """`own` is a name that no other checkpoint has, and that its files have, too; `names` has the model's own names
    for tensors, several for one that is tied."""

    own: str
    step: int
    ranks: int
    dropout: dict[str, Any]
    counters: dict[str, int]
    names: dict[str, str]
    tensors: dict[str, Stored]
    optimizer: Optimizer | None = None

    def write(self, folder: Path) -> None:
        """Raises RankError where it could not be read again."""
        data = json.dumps({"format": FORMAT, "soapstone": version(), **encode(self)}).encode()
        if len(data) > MAX_BYTES or num_values(data) > MAX_VALUES:
            boxes = sum(len(stored.chunks) for stored in self.tensors.values())
            raise RankError(f"{boxes} boxes are too many for a checkpoint; shard state over fewer devices")
        write_atomically(folder / NAME, data)

    @classmethod
    def read(cls, folder: Path) -> Index:
        """Raises SoapstoneError where it is damaged, or of another version."""
        path = folder / NAME
        try:
            data = read_json(path, MAX_BYTES, MAX_VALUES)
        except SoapstoneError as error:
            raise SoapstoneError(f"{error}; remove {folder} to use the checkpoint before") from None
        if not isinstance(data, dict) or "tensors" not in data:
            raise SoapstoneError(f"{path} is no checkpoint; name the folder that --save named")
        if data.get("format") != FORMAT:
            said = f"format {shortened(data.get('format'))}, by soapstone {shortened(data.get('soapstone'))}"
            raise SoapstoneError(f"{path} has {said}; this is {version()}, which reads format {FORMAT}")
        try:
            found: Index = decode(cls, {key: value for key, value in data.items() if key not in _KEYS}, str(path))
        except SoapstoneError as error:
            raise SoapstoneError(f"{path} is damaged ({error}); remove {folder} to use the one before") from None
        return found


def places(plans: list[SavePlan], own: Mapping[str, Holding]) -> dict[str, Stored]:
    """Where the tensors of all ranks' plans will be; `own` has those without elements, too."""
    found = {
        name: Stored(_name_of(holding.dtype), holding.shape, ()) for name, holding in own.items() if not holding.chunks
    }
    chunks: dict[str, list[Place]] = {}
    for rank, plan in enumerate(plans):
        for number, item in enumerate(plan.items):
            name, data = item.index.fqn, item.tensor_data
            assert data is not None
            found.setdefault(name, Stored(_name_of(data.properties.dtype), tuple(data.size), ()))
            place = (tuple(data.chunk.offsets), tuple(data.chunk.sizes), rank, number)
            chunks.setdefault(name, []).append(place)
    return {name: Stored(row.dtype, row.shape, tuple(chunks.get(name, ()))) for name, row in found.items()}


def _name_of(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def plain_numbers(values: Mapping[str, Any]) -> dict[str, Any]:
    """Settings and numbers as JSON has them; a tensor of one number as its value and type."""
    found: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, torch.Tensor) and not value.ndim:
            found[key] = {"value": value.item(), "dtype": _name_of(value.dtype)}
        elif isinstance(value, bool | int | float | str | None):
            found[key] = value
        elif isinstance(value, tuple) and all(isinstance(each, bool | int | float) for each in value):
            found[key] = list(value)
    return found


def restore_numbers(values: dict[str, Any], saved: Mapping[str, Any], place: torch.device | None = None) -> None:
    """Set what `plain_numbers` gave; a tensor that is there keeps its memory."""
    for key, value in saved.items():
        if isinstance(value, dict):
            own = values.get(key)
            dtype = getattr(torch, str(value.get("dtype")), None)
            if not isinstance(dtype, torch.dtype) or not isinstance(value.get("value"), bool | int | float):
                raise SoapstoneError(f"{key!r} is damaged in the checkpoint; use an older one")
            if isinstance(own, torch.Tensor):
                own.fill_(value["value"])
            else:
                values[key] = torch.tensor(value["value"], dtype=dtype, device=place)
        else:
            values[key] = tuple(value) if isinstance(value, list) else value
