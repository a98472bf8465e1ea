"""The index of a checkpoint, in JSON: where each box of each tensor is, and the numbers that are not tensors."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.planner import SavePlan
from xxhash import xxh3_128

from ...errors import RankError, SoapstoneError
from ...files import decode, encode, num_values, parse_json, read_bytes, shortened, version, write_atomically
from .coverage import are_apart
from .holdings import Holding
from .tensorfile import BLANK, DTYPES, Row, name_of

NAME = "checkpoint.json"
FORMAT = 4
MAX_BYTES, MAX_VALUES = 2**30, 2**26  # some nine for each box
_KEYS = ("checksum", "format", "soapstone")
_START = b'{"checksum": "'
_END = len(_START) + len(BLANK)
_CHECKSUM = re.compile("[0-9a-f]{32}")
_MOST = 2**63  # elements of a tensor, and the values of a counter

# The offsets and sizes of a box, its rank's file, its number there
Place = tuple[tuple[int, ...], tuple[int, ...], int, int]


class DamagedError(RankError):
    """A checkpoint is not as it was written."""


@dataclass(frozen=True)
class Stored:
    """A tensor's type and shape, and where its boxes are."""

    dtype: str
    shape: tuple[int, ...]
    chunks: tuple[Place, ...]

    def __post_init__(self) -> None:
        if self.dtype not in DTYPES:
            raise SoapstoneError(f"{shortened(self.dtype)} is not a type of numbers")
        if min(self.shape, default=0) < 0 or prod(self.shape) >= _MOST:
            raise SoapstoneError(f"{shortened(self.shape)} is not a shape")
        for offsets, sizes, _, _ in self.chunks:
            fits = len(offsets) == len(sizes) == len(self.shape) and min((0, *offsets)) >= 0 and min((1, *sizes)) > 0
            if not fits or any(first + size > end for first, size, end in zip(offsets, sizes, self.shape)):
                raise SoapstoneError(f"a box of {shortened(sizes)} is not inside of its tensor")
        if not are_apart([(offsets, sizes) for offsets, sizes, _, _ in self.chunks]):
            raise SoapstoneError("boxes of one tensor overlap")

    @property
    def is_complete(self) -> bool:
        """Boxes that do not overlap fill a tensor if they have as many elements."""
        return self.num_elements == prod(self.shape)

    @property
    def num_elements(self) -> int:
        return sum(prod(sizes) for _, sizes, _, _ in self.chunks)


@dataclass(frozen=True)
class Optimizer:
    """The optimizer's class, the names of its values for each parameter, the plain numbers among these, and the
    settings of its parameter groups."""

    kind: str
    state: dict[str, tuple[str, ...]]
    numbers: dict[str, dict[str, Any]]
    groups: tuple[dict[str, Any], ...]


@dataclass(frozen=True)
class Index:
    """`own` is a unique name, which is also in the ranks' files; `files` are the sizes and checksums of these files;
    `names` are the model's own names for tensors, several for one that is tied."""

    own: str
    step: int
    dropout: dict[str, Any]
    counters: dict[str, int]
    names: dict[str, str]
    tensors: dict[str, Stored]
    files: tuple[tuple[int, str], ...] = ()
    optimizer: Optimizer | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.step < _MOST or any(not 0 <= counter < _MOST for counter in self.counters.values()):
            raise SoapstoneError("a step or a counter is out of range")
        if any(not 0 < size < _MOST or not _CHECKSUM.fullmatch(checksum) for size, checksum in self.files):
            raise SoapstoneError("a file has no size or checksum")

    @property
    def ranks(self) -> int:
        return len(self.files)

    def rows_of(self, rank: int) -> dict[str, Row]:
        """The tensors in a rank's file, under their names there."""
        return {
            str(number): Row(stored.dtype, sizes)
            for stored in self.tensors.values()
            for _, sizes, of, number in stored.chunks
            if of == rank
        }

    def write(self, folder: Path) -> None:
        """Raises RankError where it could not be read again."""
        rows = {"checksum": BLANK.decode(), "format": FORMAT, "soapstone": version(), **encode(self)}
        data = json.dumps(rows).encode()
        if len(data) > MAX_BYTES or num_values(data) > MAX_VALUES:
            boxes = sum(len(stored.chunks) for stored in self.tensors.values())
            raise RankError(f"{boxes} boxes are too many for a checkpoint; shard state over fewer devices")
        write_atomically(folder / NAME, sealed(data))

    @classmethod
    def read(cls, folder: Path) -> Index:
        """Raises DamagedError if it is damaged, and SoapstoneError if it is of another version."""
        path = folder / NAME
        try:
            data = read_bytes(path, MAX_BYTES)
            is_whole = data == sealed(data)
            rows = parse_json(data, MAX_VALUES)
        except OSError as error:
            raise DamagedError(f"cannot read {path}: {error.strerror}") from None
        except SoapstoneError as error:
            raise DamagedError(str(error).partition(";")[0]) from None
        except ValueError as error:
            raise DamagedError(f"{path} is damaged: it is not valid JSON ({error})") from None
        if not isinstance(rows, dict) or "tensors" not in rows:
            raise DamagedError(f"{path} is damaged: it is not what a save writes")
        if rows.get("format") != FORMAT and (is_whole or "checksum" not in rows):
            said = f"format {shortened(rows.get('format'))}, by soapstone {shortened(rows.get('soapstone'))}"
            raise SoapstoneError(f"{path} has {said}; this is {version()}, which reads format {FORMAT}")
        if not is_whole:
            raise DamagedError(f"{path} is damaged: its checksum is not that of its bytes")
        try:
            found: Index = decode(cls, {key: value for key, value in rows.items() if key not in _KEYS}, str(path))
            found.check()
        except SoapstoneError as error:
            raise DamagedError(f"{path} is damaged: {error}") from None
        return found

    def check(self) -> None:
        """Raise SoapstoneError unless boxes, files and names match one another."""
        chunks = [chunk for stored in self.tensors.values() for chunk in stored.chunks]
        numbers: list[set[int]] = [set() for _ in self.files]
        for _, _, rank, number in chunks:
            if not 0 <= rank < len(numbers) or number in numbers[rank]:
                raise SoapstoneError("a box is in no file, or two are in one place")
            numbers[rank].add(number)
        if any(own != set(range(len(own))) for own in numbers) or not numbers:
            raise SoapstoneError("a file has more tensors than boxes")
        for own in self.names.values():
            if own not in self.counters and f"model/{own}" not in self.tensors:
                raise SoapstoneError(f"{shortened(own)} is in no file")
        self._check_state()

    def _check_state(self) -> None:
        """Raise SoapstoneError unless the optimizer's state is complete for each parameter that has any."""
        state = {} if self.optimizer is None else self.optimizer.state
        numbers = {} if self.optimizer is None else self.optimizer.numbers
        kept = {f"optimizer/{what}/{name}" for name, own in state.items() for what in own}
        given = {f"optimizer/{what}/{name}" for name, row in numbers.items() for what in row}
        there = {place for place in self.tensors if place.startswith("optimizer/")}
        for place in sorted((kept ^ (there | given)) | {f"model/{name}" for name in state} - self.tensors.keys()):
            raise SoapstoneError(f"the optimizer's state has less or more than was saved: {shortened(place)}")
        for name, own in state.items():
            tensors = [self.tensors[place] for what in own if (place := f"optimizer/{what}/{name}") in there]
            whole = self.tensors[f"model/{name}"]
            sizes = {stored.num_elements for stored in tensors if stored.shape == whole.shape}
            others = [stored for stored in tensors if stored.shape != whole.shape]
            if len(sizes) > 1 or not all(stored.is_complete for stored in others):
                raise SoapstoneError(f"the optimizer's state has only a part of the values for {shortened(name)}")


def sealed(data: bytes) -> bytes:
    """The index with the checksum of all its bytes, computed with zeros in place of the checksum itself."""
    blank = _START + BLANK + data[_END:]
    return _START + xxh3_128(blank).hexdigest().encode() + data[_END:]


def places(plans: list[SavePlan], own: Mapping[str, Holding]) -> dict[str, Stored]:
    """Where the tensors of all ranks' plans will be; `own` has those without elements, too."""
    found = {
        name: Stored(name_of(holding.dtype), holding.shape, ()) for name, holding in own.items() if not holding.chunks
    }
    chunks: dict[str, list[Place]] = {}
    for rank, plan in enumerate(plans):
        for number, item in enumerate(plan.items):
            name, data = item.index.fqn, item.tensor_data
            assert data is not None
            found.setdefault(name, Stored(name_of(data.properties.dtype), tuple(data.size), ()))
            place = (tuple(data.chunk.offsets), tuple(data.chunk.sizes), rank, number)
            chunks.setdefault(name, []).append(place)
    return {name: Stored(row.dtype, row.shape, tuple(chunks.get(name, ()))) for name, row in found.items()}


def plain_numbers(values: Mapping[str, Any]) -> dict[str, Any]:
    """Settings and numbers as JSON has them; a tensor of one number as its value and type."""
    found: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, torch.Tensor) and not value.ndim:
            found[key] = {"value": value.item(), "dtype": name_of(value.dtype)}
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
            dtype = DTYPES.get(str(value.get("dtype")))
            if dtype is None or not isinstance(value.get("value"), bool | int | float):
                raise SoapstoneError(f"{key!r} is damaged in the checkpoint; use an older one")
            if isinstance(own, torch.Tensor):
                own.fill_(value["value"])
            else:
                values[key] = torch.tensor(value["value"], dtype=dtype, device=place)
        else:
            values[key] = tuple(value) if isinstance(value, list) else value
