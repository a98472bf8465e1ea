"""Reads the metadata of a torch.distributed.checkpoint (DCP) folder, which may be hostile.

Its `.metadata` is a pickle. This reader never instantiates a class of it: every object becomes a record of its fields.
It accepts only the pickle instructions and the class names that DCP's own writer uses, and checks every value that it
takes from the records.
"""

from __future__ import annotations

import pickle
import re
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import torch
from xxhash import xxh3_128

from ...errors import SoapstoneError
from ...files import read_bytes, shortened
from .index import MAX_BYTES, DamagedError, Place, Stored

METADATA = ".metadata"
_DCP = "torch.distributed.checkpoint"
_NAMES = {
    *((f"{_DCP}.metadata", name) for name in (
        "BytesStorageMetadata", "ChunkStorageMetadata", "Metadata", "MetadataIndex", "StorageMeta", "TensorProperties",
        "TensorStorageMetadata", "_MEM_FORMAT_ENCODING",
    )),
    (f"{_DCP}.filesystem", "_StorageInfo"), ("torch.serialization", "_get_layout"), ("torch", "Size"),
    *((module, name) for module in ("pathlib", "pathlib._local") for name in ("PosixPath", "WindowsPath")),
}  # fmt: skip
_OPCODES = (
    pickle.PROTO, pickle.FRAME, pickle.STOP, pickle.MARK, pickle.MEMOIZE, pickle.BINGET, pickle.LONG_BINGET,
    pickle.BINPUT, pickle.LONG_BINPUT, pickle.NONE, pickle.NEWTRUE, pickle.NEWFALSE, pickle.BININT, pickle.BININT1,
    pickle.BININT2, pickle.LONG1, pickle.BINFLOAT, pickle.SHORT_BINUNICODE, pickle.BINUNICODE, pickle.EMPTY_TUPLE,
    pickle.TUPLE, pickle.TUPLE1, pickle.TUPLE2, pickle.TUPLE3, pickle.EMPTY_LIST, pickle.APPEND, pickle.APPENDS,
    pickle.EMPTY_DICT, pickle.SETITEM, pickle.SETITEMS, pickle.GLOBAL, pickle.STACK_GLOBAL,
)  # fmt: skip


class Location(NamedTuple):
    """The place of a value that `torch.save` wrote: a file of the folder, and the bytes in it."""

    file: str
    offset: int
    length: int


@dataclass(frozen=True)
class Contents:
    """The contents of a folder by key. A box of a tensor has the index of its place in `locations`; `values` are not
    tensors. `digest` is a digest of all of these."""

    tensors: dict[str, Stored]
    values: dict[str, Location]
    locations: tuple[Location, ...]
    digest: str

    @property
    def keys(self) -> list[str]:
        return [*self.tensors, *self.values]


def is_dcp(folder: Path) -> bool:
    return (folder / METADATA).is_file()


def read_contents(folder: Path) -> Contents:
    """The contents of a folder. Raises DamagedError if the metadata cannot be read, or is not what DCP writes."""
    path = folder / METADATA
    try:
        data = read_bytes(path, MAX_BYTES)
        return _contents(_Reader(BytesIO(data)).load(), xxh3_128(data).hexdigest())
    except OSError as error:
        raise DamagedError(f"cannot read {path}: {error.strerror}") from None
    except SoapstoneError as error:
        raise DamagedError(f"cannot read {path}: {error}") from None
    except Exception:  # a damaged pickle may cause any error
        raise DamagedError(
            f"cannot read {path}: it is damaged, or not what torch.distributed.checkpoint writes; use another folder"
        ) from None


@dataclass(frozen=True, eq=False, slots=True)
class _Record:
    """An object in the pickle: the class it names, and the object's fields, once they have been read."""

    kind: str
    fields: list[Any]


class _Kind(NamedTuple):
    name: str


class _Reader(pickle._Unpickler):  # the Python implementation, from which instructions can be removed
    stack: list[Any]
    dispatch: ClassVar[dict[int, Callable[[Any], None]]] = {
        code[0]: pickle._Unpickler.dispatch[code[0]] for code in _OPCODES
    }

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in _NAMES:
            return _Kind(name)
        if module == "torch" and isinstance(getattr(torch, name, None), torch.dtype):
            return name
        raise SoapstoneError(f"it names {shortened(f'{module}.{name}')}, which is not part of a checkpoint's metadata")

    def _make(self) -> None:
        arguments, kind = self.stack.pop(), self.stack.pop()
        if type(kind) is not _Kind or type(arguments) is not tuple:
            raise ValueError
        if kind.name == "Size":
            (sizes,) = arguments
            self.stack.append(tuple(sizes))
        else:
            self.stack.append(_Record(kind.name, []))

    def _fill(self) -> None:
        fields, record = self.stack.pop(), self.stack[-1]
        if type(record) is not _Record or record.fields:
            raise ValueError
        record.fields.append(fields)

    dispatch[pickle.REDUCE[0]] = dispatch[pickle.NEWOBJ[0]] = _make
    dispatch[pickle.BUILD[0]] = _fill


def _fields(record: Any, kind: str) -> dict[str, Any]:
    """The fields of an object of a class. Raises ValueError for anything else."""
    if type(record) is not _Record or record.kind != kind or len(record.fields) != 1:
        raise ValueError
    found = record.fields[0]
    if type(found) is not dict:
        raise ValueError
    return found


def _contents(root: Any, digest: str) -> Contents:
    metadata = _fields(root, "Metadata")
    places = _places(metadata["storage_data"])
    tensors, values, locations = dict[str, Stored](), dict[str, Location](), list[Location]()
    for key, record in metadata["state_dict_metadata"].items():
        if type(key) is not str or type(record) is not _Record:
            raise ValueError
        if record.kind == "BytesStorageMetadata":
            values[key] = places[key][None]
            continue
        try:
            tensors[key] = _stored(_fields(record, "TensorStorageMetadata"), places[key], locations)
        except SoapstoneError as error:
            raise SoapstoneError(f"{shortened(key)}: {error}") from None
    return Contents(tensors, values, tuple(locations), digest)


def _stored(
    fields: dict[str, Any], places: dict[tuple[int, ...] | None, Location], locations: list[Location]
) -> Stored:
    dtype = _dtype_of(fields["properties"])
    boxes = dict.fromkeys((_ints(chunk["offsets"]), _ints(chunk["sizes"])) for chunk in _chunks(fields["chunks"]))
    found: list[Place] = []
    for offsets, sizes in boxes:
        if all(sizes):
            found.append((offsets, sizes, 0, len(locations)))
            locations.append(places[offsets])
    return Stored(dtype, _ints(fields["size"]), tuple(found))


def _dtype_of(properties: Any) -> str:
    if type(properties) is not _Record or properties.kind != "TensorProperties" or len(properties.fields) != 1:
        raise ValueError
    dtype = properties.fields[0][0]
    if type(dtype) is not str:
        raise ValueError
    return dtype


def _chunks(records: Any) -> Iterator[dict[str, Any]]:
    if type(records) is not list:
        raise ValueError
    return (_fields(record, "ChunkStorageMetadata") for record in records)


def _ints(values: Any) -> tuple[int, ...]:
    if type(values) is not tuple or any(type(value) is not int or not 0 <= value < 2**63 for value in values):
        raise ValueError
    return values


def _places(records: Any) -> dict[str, dict[tuple[int, ...] | None, Location]]:
    """The location of each box of each key, by its offsets."""
    found: dict[str, dict[tuple[int, ...] | None, Location]] = defaultdict(dict)
    for key, info in records.items():
        index, place = _fields(key, "MetadataIndex"), _fields(info, "_StorageInfo")
        if place.get("transform_descriptors"):
            raise SoapstoneError("its files are compressed or changed by an extension; save it without one")
        name, numbers = place["relative_path"], (place["offset"], place["length"])
        if type(name) is not str or not re.fullmatch(r"[^/\\\0]{1,255}", name) or name in (".", ".."):
            raise SoapstoneError(f"{shortened(name)} is not the name of a file beside it")
        offset = index.get("offset")
        found[index["fqn"]][None if offset is None else _ints(offset)] = Location(name, *_ints(numbers))
    return found
