"""The encoding of messages between ranks, apart from the plan's tensors: JSON, then the bytes of tensors.

Unlike a pickle it cannot run code. It decodes to plain values, tensors, and objects of the classes that are named below
or marked `carried`, which their own constructors make. A message begins with its format, two lengths and a checksum, so
that a damaged message, or one of another version, is refused with a sentence.

Numbers, strings, None and lists are themselves in the JSON. Every other value is an object with one key, its tag.
"""

from __future__ import annotations

import dataclasses
import json
import re
import struct
from collections.abc import Callable, Iterator, Sequence
from enum import Enum
from math import prod
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
import xxhash

from ...errors import RankError, SoapstoneError
from ...files import parse_json, shortened
from ...strategy import Configuration
from ...topology import Bus, Device, Link, Sum, Topology

MAX_HEADER = 2**28  # bytes of JSON
MAX_BODY = 2**36  # bytes of tensors
MAX_DEPTH = 32
MAX_BITS = 4096  # of a whole number
_START = struct.Struct("<8sQQQ")  # format, bytes of JSON, bytes of tensors, checksum of everything else
_CHECKED = _START.size - 8  # bytes before the checksum
_FORMAT = b"soapst\0\2"
_PLAIN = (type(None), bool, float, str)
_DTYPES = {  # not those of quantized tensors, nor of less than a byte
    name: each
    for name, each in vars(torch).items()
    if isinstance(each, torch.dtype)
    and re.fullmatch(r"(bool|u?int\d\d?|b?float\d+|float8_\w+|complex\d+)", name)
    and not re.fullmatch(r"u?int[1-7]", name)
}
_CLASSES: dict[str, type] = {}
Class = TypeVar("Class", bound=type)


def carried(kind: Class) -> Class:
    """Allow ranks to send objects of this class: a dataclass, a NamedTuple or an enum. Its constructor gets values from
    another rank, so it must check them, or only store them."""
    assert dataclasses.is_dataclass(kind) or issubclass(kind, Enum) or hasattr(kind, "_fields"), kind
    assert _CLASSES.setdefault(kind.__qualname__, kind) is kind, f"two classes are named {kind.__qualname__}"
    return kind


for _each in (Topology, Device, Link, Sum, Bus, Configuration):
    carried(_each)


@carried
class Refusal(NamedTuple):
    """Sent in place of a value that cannot be sent, so that no rank waits for it."""

    reason: str


def encode(value: Any) -> bytearray:
    """The bytes of a value. Raises RankError if a part of it cannot be sent."""
    tensors: list[np.ndarray[Any, Any]] = []
    try:
        header = json.dumps(_plain(value, tensors, 0), separators=(",", ":")).encode()
    except _CannotSendError as error:
        raise RankError(f"a rank cannot send {error} to the others; send numbers, strings or tensors") from None
    return framed(header, [each.data for each in tensors])


def framed(header: bytes, pieces: Sequence[bytes | memoryview]) -> bytearray:
    """A message of this JSON and these bytes of tensors. Raises RankError if it is too long."""
    body = sum(len(each) for each in pieces)
    for size, most, what in ((len(header), MAX_HEADER, "JSON"), (body, MAX_BODY, "tensors")):
        if size > most:
            raise RankError(f"a rank cannot send {size} bytes of {what} to the others; {most} is the most")
    found = bytearray(_START.size + len(header) + body)
    place = _START.size + len(header)
    found[_START.size : place] = header
    for each in pieces:
        found[place : place + len(each)] = each
        place += len(each)
    _START.pack_into(found, 0, _FORMAT, len(header), body, 0)
    _START.pack_into(found, 0, _FORMAT, len(header), body, _checksum(memoryview(found)))
    return found


def decode(data: bytes | bytearray | memoryview) -> Any:
    """The value in a message. Raises RankError if the message is damaged or of another version."""
    try:
        return _decoded(memoryview(data))
    except SoapstoneError as error:
        raise RankError(str(error)) from None
    except Exception as error:  # a constructor may raise anything if it gets values of other types
        why = str(error) or type(error).__name__
        raise RankError(f"it is damaged, or of another version of Soapstone ({shortened(why)})") from None


def sent(value: Any) -> bytearray:
    """Like `encode`, but if the value cannot be sent, the bytes of a Refusal."""
    try:
        return encode(value)
    except RankError as error:
        return encode(Refusal(str(error)))


def received(messages: list[Any]) -> list[Any]:
    """Every rank's value, by rank. Raises RankError, the same on all ranks, if one could not send its own."""
    found = []
    for rank, data in enumerate(messages):
        try:
            value = decode(data)
        except RankError as error:
            raise RankError(f"cannot read what rank {rank} sent: {error}; start all ranks anew") from None
        if type(value) is Refusal:
            raise RankError(f"rank {rank}: {value.reason}")
        found.append(value)
    return found


def length(start: bytes) -> int:
    """The length of the message that begins with these bytes. Raises RankError if no message can begin so."""
    kind, header, body, _ = _START.unpack(start[: _START.size])
    if kind != _FORMAT or header > MAX_HEADER or body > MAX_BODY:
        raise RankError("another rank sent what is not a message of this version; start all ranks anew, of one version")
    return int(_START.size + header + body)


class _CannotSendError(Exception):
    """Its message names the value that cannot be sent."""


def _plain(value: Any, tensors: list[np.ndarray[Any, Any]], depth: int) -> Any:
    """The JSON for a value. The bytes of its tensors are appended to `tensors`."""
    kind = type(value)
    if kind in _PLAIN:
        return value
    if kind is int:
        if value.bit_length() > MAX_BITS:
            raise _CannotSendError(f"a number of {value.bit_length()} bits")
        return value
    if depth > MAX_DEPTH:
        raise _CannotSendError(f"a value with more than {MAX_DEPTH} containers inside one another")
    if isinstance(value, np.generic) and type(value.item()) in (bool, int, float):  # it arrives as Python's
        return value.item()
    if kind is list:
        return _items(value, tensors, depth)
    if kind in (tuple, torch.Size):
        return {"tuple": _items(value, tensors, depth)}
    for tag, (fits, content) in _ENCODERS.items():
        if fits(value):
            return {tag: content(value, tensors, depth)}
    raise _CannotSendError(f"a {kind.__module__}.{kind.__qualname__}")


def _items(values: Any, tensors: list[np.ndarray[Any, Any]], depth: int) -> list[Any]:
    return [each if type(each) in _PLAIN else _plain(each, tensors, depth + 1) for each in values]


def _dict(value: Any, tensors: list[np.ndarray[Any, Any]], depth: int) -> list[Any]:
    return [_items(value.keys(), tensors, depth), _items(value.values(), tensors, depth)]


def _object(value: Any, tensors: list[np.ndarray[Any, Any]], depth: int) -> list[Any]:
    kind = type(value)
    if isinstance(value, Enum):
        return [kind.__qualname__, value.name]
    return [kind.__qualname__, *_items([getattr(value, name) for name in _fields(kind)], tensors, depth)]


def _fields(kind: type) -> list[str]:
    """The arguments of its constructor, in order."""
    if dataclasses.is_dataclass(kind):
        return [each.name for each in dataclasses.fields(kind) if each.init]
    return list(kind._fields)  # type: ignore[attr-defined]


def _bytes(value: Any, tensors: list[np.ndarray[Any, Any]], depth: int) -> int:
    tensors.append(np.frombuffer(value, np.uint8))
    return len(value)


def _tensor(value: torch.Tensor, tensors: list[np.ndarray[Any, Any]], depth: int) -> list[Any]:
    name = str(value.dtype).removeprefix("torch.")
    if name not in _DTYPES or value.layout != torch.strided or value.is_meta:
        layout = str(value.layout).removeprefix("torch.")
        raise _CannotSendError(f"a {layout} tensor of {name} on {value.device}")
    flat = value.detach().cpu().resolve_conj().resolve_neg().contiguous().reshape(-1)
    tensors.append(flat.view(torch.uint8).numpy())
    return [name, *value.shape]


_Encoder = tuple[Callable[[Any], bool], Callable[[Any, list[np.ndarray[Any, Any]], int], Any]]
_ENCODERS: dict[str, _Encoder] = {
    "dict": (lambda value: isinstance(value, dict | MappingProxyType), _dict),
    "object": (lambda value: _CLASSES.get(type(value).__qualname__) is type(value), _object),
    "tensor": (lambda value: isinstance(value, torch.Tensor), _tensor),
    "bytes": (lambda value: type(value) in (bytes, bytearray), _bytes),
    "set": (lambda value: type(value) is set, _items),
    "frozenset": (lambda value: type(value) is frozenset, _items),
    "dtype": (lambda value: isinstance(value, torch.dtype), lambda value, *_: str(value).removeprefix("torch.")),
}


def _checksum(data: memoryview) -> int:
    """The checksum of the whole message except the checksum itself."""
    digest = xxhash.xxh3_64(data[:_CHECKED])
    digest.update(data[_START.size :])
    return digest.intdigest()


def _decoded(data: memoryview) -> Any:
    if len(data) < _START.size or len(data) != length(bytes(data[: _START.size])):
        raise ValueError("its length is wrong")
    _, header, _, checksum = _START.unpack_from(data)
    if _checksum(data) != checksum:
        raise ValueError("its checksum is wrong")
    place = _START.size + header
    reader = _Reader(data[place:])
    found = reader.value(parse_json(bytes(data[_START.size : place])), 0)
    if reader.rest:
        raise ValueError(f"{len(reader.rest)} bytes are left over")
    return found


class _Reader:
    """Makes values from JSON, and takes the bytes of tensors in order."""

    def __init__(self, rest: memoryview) -> None:
        self.rest = rest

    def value(self, data: Any, depth: int) -> Any:
        kind = type(data)
        if kind in _PLAIN or kind is int:
            return data
        if depth > MAX_DEPTH:
            raise ValueError("too many containers are inside one another")
        if kind is list:
            return list(self._items(data, depth))
        ((tag, content),) = data.items()
        read: Callable[[Any, int], Any] | None = getattr(self, f"_read_{tag}", None)
        if read is None:
            raise ValueError(f"there is no tag {shortened(tag)}")
        return read(content, depth)

    def _items(self, data: list[Any], depth: int) -> Iterator[Any]:
        return (each if type(each) in _PLAIN else self.value(each, depth + 1) for each in data)

    def _take(self, size: int) -> memoryview:
        if not 0 <= size <= len(self.rest):
            raise ValueError("a tensor is longer than the message")
        found, self.rest = self.rest[:size], self.rest[size:]
        return found

    def _read_tuple(self, data: Any, depth: int) -> tuple[Any, ...]:
        return tuple(self._items(data, depth))

    def _read_set(self, data: Any, depth: int) -> set[Any]:
        return set(self._items(data, depth))

    def _read_frozenset(self, data: Any, depth: int) -> frozenset[Any]:
        return frozenset(self._items(data, depth))

    def _read_dict(self, data: Any, depth: int) -> dict[Any, Any]:
        keys, values = (list(self._items(each, depth)) for each in data)  # all keys' bytes come first
        return dict(zip(keys, values, strict=True))

    def _read_bytes(self, data: Any, depth: int) -> bytes:
        return bytes(self._take(data))

    def _read_dtype(self, data: Any, depth: int) -> torch.dtype:
        return _DTYPES[data]

    def _read_tensor(self, data: Any, depth: int) -> torch.Tensor:
        name, *shape = data
        if not all(type(n) is int and n >= 0 for n in shape):
            raise ValueError("a tensor's shape is wrong")
        raw = self._take(prod(shape) * _DTYPES[name].itemsize)
        found = torch.empty(len(raw), dtype=torch.uint8)
        if len(raw):
            found.numpy()[:] = np.frombuffer(raw, np.uint8)
        return found.view(_DTYPES[name]).reshape(shape)

    def _read_object(self, data: Any, depth: int) -> Any:
        name, *values = data
        kind: Any = _CLASSES.get(name)
        if kind is None:
            raise ValueError(f"there is no class {shortened(name)}")
        if issubclass(kind, Enum):
            return kind[values[0]]
        if len(values) != len(_fields(kind)):
            raise ValueError(f"a {name} has {len(values)} fields")
        return kind(**dict(zip(_fields(kind), self._items(values, depth))))
