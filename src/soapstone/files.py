"""Files that are never half written, and frozen dataclasses to and from JSON."""

from __future__ import annotations

import dataclasses
import json
import os
import tempfile
import types
import typing
from pathlib import Path
from typing import Any

from .errors import SoapstoneError

MAX_BYTES = 256 * 2**20
_UMASK = os.umask(0o022)
os.umask(_UMASK)  # only the process can be asked, by setting it


def write_atomically(path: str | Path, text: str) -> None:
    """Write a text file whole or not at all. Raises SoapstoneError where the folder cannot be written."""
    path = checked_path(path)
    try:
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    except OSError as error:
        raise SoapstoneError(f"cannot write {path}: {error.strerror}; choose another folder") from None
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        os.chmod(name, 0o666 & ~_UMASK)
        os.replace(name, path)
    except BaseException as error:
        os.unlink(name)
        if isinstance(error, OSError):
            raise SoapstoneError(f"cannot write {path}: {error.strerror}; choose another name") from None
        raise


def checked_path(path: str | Path) -> Path:
    """Raise SoapstoneError unless this can be a path."""
    if not isinstance(path, str | os.PathLike) or "\0" in str(path):
        raise SoapstoneError(f"{path!r:.60} is not a path")
    return Path(path)


def read_json(path: str | Path) -> Any:
    """Return the parsed file. Raises SoapstoneError where it is missing, too large or no JSON."""
    path = checked_path(path)
    try:
        if path.exists() and not path.is_file():
            raise SoapstoneError(f"{path} is not a plain file")
        if path.stat().st_size > MAX_BYTES:
            raise SoapstoneError(f"{path} is larger than {MAX_BYTES >> 20} MiB; it is not one of our files")
        return json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SoapstoneError(f"cannot read {path}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        if isinstance(error, SoapstoneError):
            raise
        raise SoapstoneError(f"{path} is not valid JSON ({error}); write it anew") from None


def encode(value: Any) -> Any:
    """Dataclasses and tuples as plain JSON values; fields that hold their default are left out."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: encode(v) for f in dataclasses.fields(value) if (v := getattr(value, f.name)) != f.default}
    if isinstance(value, tuple | list):
        return [encode(item) for item in value]
    if isinstance(value, dict):
        return {key: encode(item) for key, item in value.items()}
    return value


def decode(kind: Any, data: Any, where: str) -> Any:
    """The inverse of `encode` for a type; raises SoapstoneError that names the place where the data do not fit."""
    origin = typing.get_origin(kind)
    if kind is Any:
        return data
    if origin in (typing.Union, types.UnionType):
        options = [option for option in typing.get_args(kind) if option is not type(None)]
        return None if data is None else decode(options[0], data, where)
    if origin is tuple:
        return _decode_tuple(typing.get_args(kind), data, where)
    if origin is dict:
        if not isinstance(data, dict):
            raise SoapstoneError(f"{where} must be an object, not {data!r:.60}")
        return {key: decode(typing.get_args(kind)[1], item, f"{where}.{key}") for key, item in data.items()}
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        return _decode_dataclass(kind, data, where)
    if kind is float and type(data) is int:
        return float(data)
    if type(data) is not kind:
        raise SoapstoneError(f"{where} must be of type {kind.__name__}, not {data!r:.60}")
    return data


def _decode_tuple(arguments: tuple[Any, ...], data: Any, where: str) -> tuple[Any, ...]:
    if not isinstance(data, list):
        raise SoapstoneError(f"{where} must be a list, not {data!r:.60}")
    if len(arguments) == 2 and arguments[1] is Ellipsis:
        return tuple(decode(arguments[0], item, f"{where}[{i}]") for i, item in enumerate(data))
    if len(arguments) != len(data):
        raise SoapstoneError(f"{where} must have {len(arguments)} items, not {len(data)}")
    return tuple(decode(a, item, f"{where}[{i}]") for i, (a, item) in enumerate(zip(arguments, data)))


def _decode_dataclass(kind: Any, data: Any, where: str) -> Any:
    if not isinstance(data, dict):
        raise SoapstoneError(f"{where} must be an object, not {data!r:.60}")
    hints = typing.get_type_hints(kind)
    fields = {f.name: f for f in dataclasses.fields(kind)}
    for key in data:
        if key not in fields:
            raise SoapstoneError(f"{where} has an unknown key {key!r}; known: {', '.join(fields)}")
    for name, field in fields.items():
        if name not in data and field.default is field.default_factory is dataclasses.MISSING:
            raise SoapstoneError(f"{where} lacks the key {name!r}")
    return kind(**{name: decode(hints[name], item, f"{where}.{name}") for name, item in data.items()})
