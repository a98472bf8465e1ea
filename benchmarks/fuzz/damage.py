"""Ways to damage a checkpoint's files: flipped bits, and swaps that keep all sizes."""

from __future__ import annotations

import json
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

Damage = Callable[[Path, Path, random.Random], str]  # of a checkpoint; another one; what it did

INDEX = "checkpoint.json"


def bit_of_index(folder: Path, other: Path, rng: random.Random) -> str:
    return _flip(folder / INDEX, rng, rng.randrange((folder / INDEX).stat().st_size))


def bit_of_header(folder: Path, other: Path, rng: random.Random) -> str:
    path = _some_file(folder, rng)
    return _flip(path, rng, rng.randrange(8 + _header_size(path)))


def bit_of_data(folder: Path, other: Path, rng: random.Random) -> str:
    path = _some_file(folder, rng)
    return _flip(path, rng, rng.randrange(8 + _header_size(path), path.stat().st_size))


def files_swapped(folder: Path, other: Path, rng: random.Random) -> str:
    one, another = rng.sample(_files(folder), 2)
    spare = folder / "spare"
    one.rename(spare)
    another.rename(one)
    spare.rename(another)
    return f"{one.name} and {another.name}"


def file_of_another(folder: Path, other: Path, rng: random.Random) -> str:
    path = rng.choice([*_files(folder), folder / INDEX])
    shutil.copyfile(other / path.name, path)
    return path.name


def blocks_swapped(folder: Path, other: Path, rng: random.Random) -> str:
    path = _some_file(folder, rng)
    raw, start = bytearray(path.read_bytes()), 8 + _header_size(path)
    size = rng.choice((8, 64, 256))
    count = (len(raw) - start) // size
    one, another = (start + size * place for place in rng.sample(range(count), 2))
    raw[one : one + size], raw[another : another + size] = raw[another : another + size], raw[one : one + size]
    path.write_bytes(raw)
    return f"{size} bytes at {one} and {another} of {path.name}"


def names_swapped(folder: Path, other: Path, rng: random.Random) -> str:
    def change(header: dict[str, Any]) -> str:
        one, another = rng.sample([name for name in header if name != "__metadata__"], 2)
        header[one], header[another] = header[another], header[one]
        return f"{one} and {another}"

    return _with_header(_some_file(folder, rng), change)


def type_changed(folder: Path, other: Path, rng: random.Random) -> str:
    def change(header: dict[str, Any]) -> str:
        name = rng.choice([name for name in header if name != "__metadata__"])
        before = header[name]["dtype"]
        header[name]["dtype"] = {"F32": "I32", "F64": "I64"}.get(before, "I8")
        return f"{name} from {before}"

    return _with_header(_some_file(folder, rng), change)


def lie_about_itself(folder: Path, other: Path, rng: random.Random) -> str:
    def change(header: dict[str, Any]) -> str:
        key = rng.choice([*header["__metadata__"]])
        header["__metadata__"][key] = header["__metadata__"][key][::-1]
        return str(key)

    return _with_header(_some_file(folder, rng), change)


def cut_short(folder: Path, other: Path, rng: random.Random) -> str:
    path = rng.choice([*_files(folder), folder / INDEX])
    size = rng.randrange(path.stat().st_size)
    os.truncate(path, size)
    return f"{path.name} to {size}"


def made_longer(folder: Path, other: Path, rng: random.Random) -> str:
    path = rng.choice([*_files(folder), folder / INDEX])
    with path.open("ab") as file:
        file.write(rng.choice((b" ", b"\0" * 8, b"{}")))
    return path.name


def removed(folder: Path, other: Path, rng: random.Random) -> str:
    path = rng.choice([*_files(folder), folder / INDEX])
    path.unlink()
    return path.name


def no_file(folder: Path, other: Path, rng: random.Random) -> str:
    path = rng.choice([*_files(folder), folder / INDEX])
    path.unlink()
    what = rng.choice([*_INSTEAD])
    _INSTEAD[what](path)
    return f"a {what} as {path.name}"


def untouched(folder: Path, other: Path, rng: random.Random) -> str:
    return "nothing"


def _device(path: Path) -> None:
    path.symlink_to("/dev/zero")


_INSTEAD: dict[str, Callable[[Path], object]] = {"folder": Path.mkdir, "pipe": os.mkfifo, "device": _device}
BITS: dict[str, Damage] = {
    "a bit of the index": bit_of_index,
    "a bit of a file's header": bit_of_header,
    "a bit of a file's data": bit_of_data,
}
STRUCTURE: dict[str, Damage] = {
    "ranks' files swapped": files_swapped,
    "a file of another checkpoint": file_of_another,
    "equal blocks swapped": blocks_swapped,
    "names swapped in a header": names_swapped,
    "a type changed in a header": type_changed,
    "a header's claims changed": lie_about_itself,
    "a file cut short": cut_short,
    "a file made longer": made_longer,
    "a file removed": removed,
    "no file in its place": no_file,
}
NONE: dict[str, Damage] = {"none": untouched}  # which must be read


def _files(folder: Path) -> list[Path]:
    return sorted(folder.glob("rank-*.safetensors"))


def _some_file(folder: Path, rng: random.Random) -> Path:
    return rng.choice(_files(folder))


def _flip(path: Path, rng: random.Random, place: int) -> str:
    bit = rng.randrange(8)
    with path.open("r+b") as file:
        file.seek(place)
        old = file.read(1)[0]
        file.seek(place)
        file.write(bytes([old ^ 1 << bit]))
    return f"bit {bit} of byte {place} of {path.name}"


def _header_size(path: Path) -> int:
    with path.open("rb") as file:
        return int.from_bytes(file.read(8), "little")


def _with_header(path: Path, change: Callable[[dict[str, Any]], str]) -> str:
    """Change a header, in as many bytes as it had."""
    raw, size = path.read_bytes(), _header_size(path)
    header = json.loads(raw[8 : 8 + size])
    what = change(header)
    text = json.dumps(header, separators=(",", ":")).encode()
    path.write_bytes(raw[:8] + text.ljust(size) + raw[8 + size :] if len(text) <= size else b"")
    return f"{what} in {path.name}"
