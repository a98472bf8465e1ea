"""A rank's file of tensors: safetensors, with a checksum of the whole file at a fixed offset in its header. A reader
can therefore check every bit of the file before it uses any of it.

    8 bytes      length of the header
    header       JSON: {"__metadata__": {"checksum": 32 digits, ...}, NAME: {"dtype", "shape", "data_offsets"}, ...}
    data         the tensors' bytes, without gaps

The checksum is the xxh3_128 of all these bytes, with zeros for its own 32 digits. It finds accidents, not forgeries.
"""

from __future__ import annotations

import json
import mmap
import os
from collections.abc import Mapping, Sequence
from math import prod
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import torch
from xxhash import xxh3_128

from ...errors import SoapstoneError
from ...files import opened

_CODES = {
    "bool": "BOOL", "uint8": "U8", "int8": "I8", "uint16": "U16", "int16": "I16", "uint32": "U32", "int32": "I32",
    "uint64": "U64", "int64": "I64", "float16": "F16", "bfloat16": "BF16", "float32": "F32", "float64": "F64",
    "float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2", "complex64": "C64",
}  # fmt: skip
DTYPES: dict[str, torch.dtype] = {name: getattr(torch, name) for name in _CODES}
BLANK = b"0" * 32  # in place of a checksum while it is computed
_START = b'{"__metadata__":{"checksum":"'
_AT = 8 + len(_START)
_PIECE = 2**22
_MOST_HEADER = 2**30


class Pin(NamedTuple):
    """The size of a file and its checksum."""

    size: int
    checksum: str


class Row(NamedTuple):
    """A tensor's type and shape."""

    dtype: str
    shape: tuple[int, ...]


def write(path: Path, tensors: Sequence[torch.Tensor], about: Mapping[str, str]) -> None:
    """Write tensors under their numbers as names, and wait until they are on disk. Raises SoapstoneError for a type
    of numbers that the format does not have."""
    plain = [tensor.detach().to("cpu").contiguous() for tensor in tensors]
    header = _header(plain, about)
    digest = xxh3_128(header)
    with path.open("wb") as file:
        file.write(header)
        for number in _order(plain):
            values = plain[number].reshape(-1).view(torch.uint8).numpy().data
            for start in range(0, len(values), _PIECE):
                piece = values[start : start + _PIECE]
                digest.update(piece)
                file.write(piece)
        file.seek(_AT)
        file.write(digest.hexdigest().encode())
        file.flush()
        os.fsync(file.fileno())


def _header(tensors: Sequence[torch.Tensor], about: Mapping[str, str]) -> bytes:
    rows: dict[str, Any] = {"__metadata__": {"checksum": BLANK.decode(), **about}}
    place = 0
    for number in _order(tensors):
        tensor, end = tensors[number], place + tensors[number].nbytes
        name = name_of(tensor.dtype)
        if name not in _CODES:
            raise SoapstoneError(f"tensors of {name} cannot be saved; save numbers of another type")
        rows[str(number)] = {"dtype": _CODES[name], "shape": list(tensor.shape), "data_offsets": [place, end]}
        place = end
    text = json.dumps(rows, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    assert text.startswith(_START)
    return len(text).to_bytes(8, "little") + text


def _order(tensors: Sequence[torch.Tensor]) -> list[int]:
    """The widest types first, so that every number is aligned."""
    return sorted(range(len(tensors)), key=lambda number: (-tensors[number].element_size(), number))


def name_of(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def pin_of(path: Path) -> Pin:
    """The size and the checksum of a file that was just written."""
    with path.open("rb") as file:
        file.seek(_AT)
        return Pin(os.fstat(file.fileno()).st_size, file.read(len(BLANK)).decode())


class TensorFile:
    """A file, open for reading. Everything in its header must be as expected before any tensor is read."""

    def __init__(self, path: Path, pin: Pin, about: Mapping[str, str], rows: Mapping[str, Row]) -> None:
        """Raises SoapstoneError, or OSError, unless size, checksum, metadata and header are as expected."""
        self._pin = pin
        self._file = _opened(path)
        try:
            size = os.fstat(self._file.fileno()).st_size
            said = _claims(self._file, size)
            for key, value in about.items():
                if key in said and said[key] != value:
                    raise SoapstoneError(_another(key, said[key]))
            if size != pin.size:
                raise SoapstoneError(f"it has {size:,} bytes, not the {pin.size:,} that were written")
            self._file.seek(_AT)
            if self._file.read(len(BLANK)).decode(errors="replace") != pin.checksum:
                raise SoapstoneError("its checksum is not the one that was written")
            self._places = _places(self._file, size, rows)
            self._map = mmap.mmap(self._file.fileno(), 0, access=mmap.ACCESS_COPY)  # torch wants it writable
        except BaseException:
            self._file.close()
            raise

    def close(self) -> None:
        self._file.close()

    def verify(self) -> None:
        """Read the whole file. Raises SoapstoneError unless its checksum is right."""
        digest, buffer = xxh3_128(), bytearray(_PIECE)
        self._file.seek(0)
        while count := self._file.readinto(buffer):  # type: ignore[attr-defined]
            if self._file.tell() == count:
                buffer[_AT : _AT + len(BLANK)] = BLANK
            digest.update(memoryview(buffer)[:count])
        if digest.hexdigest() != self._pin.checksum:
            raise SoapstoneError("its bytes are not those that were written")

    def tensor(self, name: str) -> torch.Tensor:
        """A tensor that shares the file's mapped memory: copy from it."""
        row, place = self._places[name]
        dtype = DTYPES[row.dtype]
        return torch.frombuffer(self._map, dtype=dtype, count=prod(row.shape), offset=place).reshape(row.shape)


def _opened(path: Path) -> BinaryIO:
    try:
        return opened(path)
    except SoapstoneError:
        raise SoapstoneError("it is not a plain file") from None


def _claims(file: BinaryIO, size: int) -> dict[str, str]:
    """The metadata that a file claims to have. It is not verified, and serves only for messages."""
    try:
        found = json.loads(_text(file, size))["__metadata__"]
        return {key: value for key, value in found.items() if isinstance(value, str) and len(value) < 64}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return {}


def _another(key: str, value: str) -> str:
    return f"it is of rank {value}" if key == "rank" else "it is of another checkpoint"


def _text(file: BinaryIO, size: int) -> bytes:
    """The header. Raises ValueError if there is none."""
    file.seek(0)
    length = int.from_bytes(file.read(8), "little")
    if not 0 < length <= min(size - 8, _MOST_HEADER):
        raise ValueError("it has no header")
    return file.read(length)


def _places(file: BinaryIO, size: int, rows: Mapping[str, Row]) -> dict[str, tuple[Row, int]]:
    """The offset of each tensor. Raises SoapstoneError unless exactly these tensors fill the file."""
    try:
        text = _text(file, size)
        header = json.loads(text)
        del header["__metadata__"]
        found = {name: (row["dtype"], tuple(row["shape"]), tuple(row["data_offsets"])) for name, row in header.items()}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise SoapstoneError("its header is damaged") from None
    wanted = {name: (_CODES[row.dtype], row.shape) for name, row in rows.items()}
    if {name: place[:2] for name, place in found.items()} != wanted:
        raise SoapstoneError("it has other tensors than its index says")
    end = 0
    for name, (_, shape, offsets) in sorted(found.items(), key=lambda item: item[1][2]):
        first, end = end, end + prod(shape) * DTYPES[rows[name].dtype].itemsize
        if offsets != (first, end):
            raise SoapstoneError("its tensors overlap or leave gaps")
    if 8 + len(text) + end != size:
        raise SoapstoneError("its tensors do not fill it")
    return {name: (rows[name], 8 + len(text) + offsets[0]) for name, (_, _, offsets) in found.items()}
