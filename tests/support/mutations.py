"""Files as nobody should write them: damaged at random, hostile on purpose, or no files at all."""

from __future__ import annotations

import json
import os
import random
import resource
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from soapstone.errors import SoapstoneError
from tests.support.waiting import HANG

ROOM = 2**30  # bytes that a reader may take
LONGEST = 700  # characters of a sentence, without a path


def damaged(raw: bytes, rng: random.Random) -> bytes:
    """The same with some bytes cut off, flipped, replaced, repeated or taken out."""
    place = rng.randrange(len(raw))
    end = min(len(raw), place + rng.choice((1, 4, 100)))
    changed = bytearray(raw)
    kind = rng.choice(("cut", "flip", "replace", "repeat", "remove", "zero"))
    if kind == "cut":
        del changed[place:]
    elif kind == "flip":
        changed[place] ^= 1 << rng.randrange(8)
    elif kind == "replace":
        changed[place:end] = rng.randbytes(end - place)
    elif kind == "repeat":
        changed[place:place] = changed[place:end]
    elif kind == "remove":
        del changed[place:end]
    else:
        changed[place:end] = bytes(end - place)
    return bytes(changed)


VALUES = {  # that may stand at any place of a JSON file, and of a YAML one
    "nothing": "null", "true": "true", "zero": "0", "below zero": "-1", "half": "0.5", "large": "2147483648",
    "larger": "9223372036854775808", "huge": "9" * 4000, "too long": "1" + "0" * 5000, "infinite": "1e999",
    "no number": "NaN", "no text": '""', "a nul": '"\\u0000"', "half a character": '"\\ud800"',
    "odd": '"\\u001b[31m\\n"',
    "a long text": '"' + "x" * 100_000 + '"', "a path": '"../../../../etc/passwd"', "a device": '"/dev/zero"',
    "no list": "[]", "a list": "[1, [2]]", "no object": "{}", "an object": '{"a": {"b": 1}}', "a range": '"0-999999"',
    "a pattern": '"[*?!]**"', "deep": "[" * 900 + "]" * 900, "deeper": "[" * 100_000 + "]" * 100_000,
    "deep objects": '{"a":' * 900 + "1" + "}" * 900, "many": "[" + "0," * 10_000 + "0]",
}  # fmt: skip

ONLY_YAML = {
    "a call": '!!python/object/apply:os.system ["touch called"]', "an empty number": '!!int ""', "a flag": "!!bool x",
    "no time": "!!timestamp x", "no date": "2001-99-99", "in itself": "&a [*a]", "no anchor": "*nowhere",
    "in hex": "0x" + "f" * 10_000, "by sixties": "1:" * 5_000 + "1", "no number": ".nan", "infinite": "-.inf",
    "merged": "{<<: 3}", "a key": "{? [1] : 2}", "set": "!!set {a, b}", "bytes": "!!binary =", "value": "=",
}  # fmt: skip

BOMB = "\n".join(
    ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    + [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 10)]
    + ["devices: *a9", "links: *a9"]
)
MERGES = "\n".join(
    ["a0: &a0 {name: x, kind: y}"]
    + [f"a{i}: &a{i} {{<<: [{', '.join([f'*a{i - 1}'] * 10)}]}}" for i in range(1, 9)]
    + ["devices: [*a8]", "links: []"]
)
WHOLE = {  # what a file may hold instead
    "nothing": b"", "zeros": bytes(5000), "a number": b"3", "a list": b"[]", "an object": b"{}", "a text": b'"x"',
    "no text": b"\xff\xfe\x00\x80", "a mark": b"\xef\xbb\xbf{}", "deep": b"[" * 200_000,
    "deep objects": b'{"a":' * 50_000,
    "deep lines": b"".join(b" " * i + b"a:\n" for i in range(1500)), "a bomb": BOMB.encode(), "merges": MERGES.encode(),
    "two": b"{}\n---\n{}", "a call": b"!!python/object/apply:os.system ['touch called']", "a tab": b"\ta: b",
}  # fmt: skip


def places_in(data: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The way to each value."""
    yield path
    inside = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    for key, value in inside:
        yield from places_in(value, (*path, key))


def with_text(data: Any, path: tuple[Any, ...], text: str) -> str:
    """The JSON of some data with a text in place of one value."""
    mark = "@here@"
    return json.dumps(_changed(data, path, mark)).replace(f'"{mark}"', text)


def _changed(data: Any, path: tuple[Any, ...], value: Any) -> Any:
    if not path:
        return value
    copy = dict(data) if isinstance(data, dict) else list(data)
    copy[path[0]] = _changed(data[path[0]], path[1:], value)
    return copy


def _sparse(path: Path) -> None:
    path.touch()
    os.truncate(path, 2**40)


INSTEAD: dict[str, Callable[[Path], object]] = {  # of a file
    "a folder": lambda path: path.mkdir(),
    "a pipe": lambda path: os.mkfifo(path),
    "a link to itself": lambda path: path.symlink_to(path),
    "a link to nothing": lambda path: path.symlink_to(path.with_name("nothing")),
    "a device": lambda path: path.symlink_to("/dev/zero"),
    "a terabyte": _sparse,
}


@contextmanager
def guarded() -> Iterator[None]:
    """Fails where what is inside does not end, or takes a gigabyte."""

    def stop(*_: object) -> None:
        raise AssertionError("it hangs")

    before, limits = signal.signal(signal.SIGALRM, stop), resource.getrlimit(resource.RLIMIT_AS)
    taken = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (taken + ROOM, limits[1]))
    signal.alarm(int(HANG))
    try:
        yield
    finally:
        signal.alarm(0)
        resource.setrlimit(resource.RLIMIT_AS, limits)
        signal.signal(signal.SIGALRM, before)


def assert_refused_or_read(read: Callable[[Path], object], path: Path, what: object) -> None:
    """Whatever it holds, and it still does."""
    before = _held(path)
    try:
        with guarded():
            read(path)
    except SoapstoneError as error:
        sentence = str(error)
        assert len(sentence.replace(str(path), "")) < LONGEST, what
        assert "\n" not in sentence, what
    except BaseException as error:
        raise AssertionError(f"{what!r:.300}: {type(error).__name__}: {error!s:.300}") from error
    assert _held(path) == before, what


def _held(path: Path) -> object:
    if not path.is_file() or path.stat().st_size > 2**30:
        return path.lstat().st_mode
    return path.read_bytes()
