"""Files that are never half written, and frozen dataclasses to and from JSON."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import reprlib
import stat
import tempfile
import types
import typing
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from importlib import metadata
from itertools import chain, count
from pathlib import Path
from typing import Any, BinaryIO

import xxhash

from .errors import SoapstoneError, meant

MAX_BYTES = 256 * 2**20
MAX_VALUES = 2**23  # of a JSON file: each takes some hundred bytes of memory
MAX_DEPTH = 32  # of values that have no type
HALF = ".soapstone-"  # how the names of files begin that are being written
_SHORT = reprlib.Repr()
_SHORT.maxlevel = 2
_SHORT.maxstring = _SHORT.maxother = 78
_UMASK = os.umask(0o022)
os.umask(_UMASK)  # only the process can be asked, by setting it
FILE_MODE = 0o666 & ~_UMASK  # as of any file that a program makes


def version() -> str:
    """This package's, as it was installed."""
    try:
        return metadata.version("soapstone")
    except metadata.PackageNotFoundError:  # it is run from its sources
        return "0+unknown"


def write_atomically(path: str | Path, content: str | bytes) -> None:
    """Write a file whole or not at all. Raises SoapstoneError where the folder cannot be written."""
    data = content.encode() if isinstance(content, str) else content
    path = checked_path(path)
    if path.exists() and not path.is_file():  # a pipe or a device is written to, never replaced
        _write_through(path, data)
        return
    with replacing(path) as half:
        half.write_bytes(data)


@contextmanager
def replacing(path: str | Path) -> Iterator[Path]:
    """An empty file that takes a path's place once it is written. Raises SoapstoneError where it cannot be."""
    path = _resolved(checked_path(path))  # a link stays a link
    try:
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=HALF)
        os.close(handle)
    except OSError as error:
        raise SoapstoneError(f"cannot write {path}: {error.strerror}; choose another folder") from None
    try:
        yield Path(name)
        os.chmod(name, FILE_MODE)
        os.replace(name, path)
    except BaseException as error:
        os.unlink(name)
        if isinstance(error, OSError):
            raise SoapstoneError(f"cannot write {path}: {error.strerror}; choose another name") from None
        raise


def _resolved(path: Path) -> Path:
    """Where it leads. Raises SoapstoneError where links go in a circle."""
    try:
        return path.resolve()
    except (OSError, RuntimeError):
        raise SoapstoneError(f"cannot write {path}: it links to itself; choose another name") from None


def _write_through(path: Path, data: bytes) -> None:
    try:
        path.write_bytes(data)
    except OSError as error:
        raise SoapstoneError(f"cannot write {path}: {error.strerror}; choose another name") from None


def check_writable(path: str | Path) -> None:
    """Raise SoapstoneError where a file could not be written, before the work that it is for begins."""
    path = checked_path(path)
    try:
        if path.is_dir():
            raise SoapstoneError(f"cannot write {path}: it is a folder; choose another name")
        if not _resolved(path).exists():
            tempfile.TemporaryFile(dir=path.parent).close()
    except OSError as error:
        raise SoapstoneError(f"cannot write {path}: {error.strerror}; choose another name or folder") from None


def unused_path(path: Path) -> Path:
    """This path, or the first of path-2, path-3, ... that there is not yet; made as an empty file, so that no other
    process takes it. Raises SoapstoneError where the folder cannot be written."""
    for name in chain([path], (path.with_stem(f"{path.stem}-{number}") for number in count(2))):
        try:
            name.touch(exist_ok=False)
            return name
        except FileExistsError:
            continue
        except OSError as error:
            raise SoapstoneError(f"cannot write {name}: {error.strerror}; choose another name or folder") from None
    raise AssertionError


def shortened(value: object) -> str:
    """What it is, in few characters: a hostile file's value may be endless."""
    try:
        return f"{_SHORT.repr(value):.80}"
    except ValueError:  # Python writes no number of more than some thousand digits
        return f"a very large {type(value).__name__}"


def files_beside(path: str | Path, *suffixes: str) -> list[str]:
    """The names of files of these kinds in the folder of a path: one of them may have been meant."""
    try:
        return sorted(file.name for file in Path(path).parent.iterdir() if file.suffix in suffixes and file.is_file())
    except (OSError, ValueError):
        return []


def not_a_file(path: str | Path, what: str, otherwise: str, *suffixes: str) -> str:
    """A message for a path that is not a file: what is wrong with it, and what to do."""
    path = Path(path)
    if path.is_dir():
        return f"{path} is a folder; name a file"
    if path.exists():
        return f"{path} is not a plain file; name a file"
    if path.is_symlink():
        return f"{path} links to something that does not exist; name a file"
    return f"there is no {what} {path}; {meant(path.name, files_beside(path, *suffixes), otherwise)}"


def whole_number(text: str) -> int | None:
    """The number that at most 18 digits stand for; None for any other text."""
    return int(text) if re.fullmatch(r"[0-9]{1,18}", text) else None


def checked_path(path: str | os.PathLike[str]) -> Path:
    """Raise SoapstoneError unless this can be a path."""
    try:
        if b"\0" not in os.fsencode(path):
            return Path(path)
    except (TypeError, UnicodeError):
        pass
    raise SoapstoneError(f"{shortened(path)} is not a path")


def opened(path: Path) -> BinaryIO:
    """A plain file, open for reading. Raises SoapstoneError for anything else, and OSError if opening fails."""
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # a pipe would wait for somebody to write
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise SoapstoneError(f"{path} is not a plain file; name one")
    return open(handle, "rb")


def read_bytes(path: Path, most: int = MAX_BYTES) -> bytes:
    """What a plain file holds. Raises SoapstoneError where it is something else or too large, and OSError where reading
    fails."""
    with opened(path) as file:
        size = os.fstat(file.fileno()).st_size
        data = file.read(size + 1) if size <= most else b""  # read() allocates this much at once
    if max(size, len(data)) > most:
        raise SoapstoneError(f"{path} is larger than {most >> 20} MiB; it is not one of our files")
    return data


def read_json(path: str | Path, most_bytes: int = MAX_BYTES, most_values: int = MAX_VALUES) -> Any:
    """Return the parsed file. Raises SoapstoneError where it is missing, too large or no JSON."""
    path = checked_path(path)
    try:
        return parse_json(read_bytes(path, most_bytes), most_values)
    except OSError as error:
        raise SoapstoneError(f"cannot read {path}: {error.strerror}") from None
    except SoapstoneError:
        raise
    except ValueError as error:
        raise SoapstoneError(f"{path} is not valid JSON ({error}); write it anew") from None


def checksum_of(data: Any) -> str:
    """The checksum of JSON data, independent of the order of keys and of spaces. It finds accidents, not forgeries."""
    text = json.dumps(data, sort_keys=True, separators=(",", ":"))
    return str(xxhash.xxh3_128_hexdigest(text.encode()))


def is_whole(data: dict[str, Any]) -> bool:
    """Whether the checksum in an object is that of everything else in it."""
    rest = {key: value for key, value in data.items() if key != "checksum"}
    return bool(data.get("checksum") == checksum_of(rest))


def num_values(data: bytes) -> int:
    """How many values JSON has, at most."""
    return sum(map(data.count, (b",", b"[", b"{")))


def parse_json(data: bytes, most_values: int = MAX_VALUES) -> Any:
    """What JSON holds. Raises ValueError that says in a few words what is wrong."""
    if num_values(data) > most_values:
        raise ValueError(f"it has more than {most_values} values")
    try:
        return json.loads(data.decode(), object_pairs_hook=_with_unique_keys)
    except UnicodeDecodeError:
        raise ValueError("it is not text") from None
    except _TwiceError:
        raise ValueError(_key_that_is_twice(data.decode())) from None
    except RecursionError:
        raise ValueError("it has too many lists inside one another") from None
    except json.JSONDecodeError:
        raise
    except ValueError:  # Python reads none of more than some thousand
        raise ValueError("a number has too many digits") from None


class _TwiceError(Exception):
    """A JSON object has a duplicate key."""


def _with_unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise _TwiceError
    return found


_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"(\s*:)?|[{}]')


def _key_that_is_twice(text: str) -> str:
    """A message that names the first duplicate key and its line. json raises at the end of the object that has it, so
    the text up to there is valid JSON, and its strings are complete."""
    open_: list[set[str]] = []
    for token in _TOKEN.finditer(text):
        if token[0] == "{":
            open_.append(set())
        elif token[0] == "}":
            open_.pop()
        elif token[1]:
            key = json.loads(token[0].removesuffix(token[1]))
            if key in open_[-1]:
                line = text.count("\n", 0, token.start()) + 1
                return f"the key {shortened(key)} is there twice, the second time in line {line}"
            open_[-1].add(key)
    return "a key is there twice"


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
    try:
        return _decoder(kind)(data)
    except _MisfitError as misfit:
        raise SoapstoneError(f"{where}{''.join(reversed(misfit.path))} {misfit.reason}") from None


class _MisfitError(Exception):
    """What is wrong, and on the way up, where."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason, self.path = reason, list[str]()


Decoder = Callable[[Any], Any]


@cache
def _decoder(kind: Any) -> Decoder:
    """What checks and converts data of a type; made once for each type, as a graph has many thousands of values."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if kind is Any:
        return _untyped
    if origin in (typing.Union, types.UnionType):
        inner = _decoder(next(option for option in arguments if option is not type(None)))
        return lambda data: None if data is None else inner(data)
    if origin is tuple:
        repeated = len(arguments) == 2 and arguments[1] is Ellipsis
        return _repeated(_decoder(arguments[0])) if repeated else _fixed([_decoder(a) for a in arguments])
    if origin is dict:
        return _mapping(_decoder(arguments[1]))
    if dataclasses.is_dataclass(kind):
        return _fields(kind)
    return _plain(kind)


def _untyped(data: Any) -> Any:
    """As it is: what reads it later goes into it by recursion."""
    level = [data]
    for _ in range(MAX_DEPTH):
        level = [item for value in level if isinstance(value, dict | list) for item in _items(value)]
        if not level:
            return data
    raise _MisfitError(f"has more than {MAX_DEPTH} lists or objects inside one another")


def _items(container: Any) -> Any:
    return container.values() if isinstance(container, dict) else container


def _plain(kind: type) -> Decoder:
    def convert(data: Any) -> Any:
        if type(data) is kind:
            return data
        if kind is float and type(data) is int and abs(data) < 2**1000:
            return float(data)
        raise _MisfitError(f"must be of type {kind.__name__}, not {shortened(data)}")

    return convert


def _repeated(item: Decoder) -> Decoder:
    def convert(data: Any) -> Any:
        return tuple(_each([(i, item, value) for i, value in enumerate(_list(data))]))

    return convert


def _fixed(items: list[Decoder]) -> Decoder:
    def convert(data: Any) -> Any:
        if len(_list(data)) != len(items):
            raise _MisfitError(f"must have {len(items)} items, not {len(data)}")
        return tuple(_each([(i, item, value) for i, (item, value) in enumerate(zip(items, data))]))

    return convert


def _mapping(item: Decoder) -> Decoder:
    def convert(data: Any) -> Any:
        return dict(zip(_object(data), _each([(key, item, value) for key, value in data.items()])))

    return convert


def _fields(kind: Any) -> Decoder:
    hints = typing.get_type_hints(kind)
    fields = {f.name: _decoder(hints[f.name]) for f in dataclasses.fields(kind)}
    missing = dataclasses.MISSING
    needed = [f.name for f in dataclasses.fields(kind) if f.default is missing and f.default_factory is missing]

    def convert(data: Any) -> Any:
        for key in _object(data):
            if key not in fields:
                raise _MisfitError(f"has an unknown key {shortened(key)}; known: {', '.join(fields)}")
        for name in needed:
            if name not in data:
                raise _MisfitError(f"lacks the key {name!r}")
        return kind(**dict(zip(data, _each([(name, fields[name], value) for name, value in data.items()]))))

    return convert


def _each(items: list[tuple[int | str, Decoder, Any]]) -> list[Any]:
    """Convert the items of one container; a misfit learns the place of the item in which it is."""
    place: int | str = 0
    found = []
    try:
        for place, item, data in items:  # noqa: B007  read below
            found.append(item(data))
    except _MisfitError as misfit:
        misfit.path.append(f"[{place}]" if isinstance(place, int) else f".{place:.80}")
        raise
    return found


def _list(data: Any) -> Any:
    if not isinstance(data, list):
        raise _MisfitError(f"must be a list, not {shortened(data)}")
    return data


def _object(data: Any) -> Any:
    if not isinstance(data, dict):
        raise _MisfitError(f"must be an object, not {shortened(data)}")
    return data
