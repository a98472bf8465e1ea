"""Reads and writes YAML for our files: numbers, names, lists and mappings, and no more of them than fit into memory.

Plain values are read by the core schema of YAML 1.2. By version 1.1, which most Python programs read, 010 is 8, 1:30 is
90, `no` is false and 12.5e9 is a string. Here they are 10, two strings, and a number. A number without a fraction is an
int, as numbers of bytes must be. The files that are written can be read by both versions.

A file may come from anywhere, and a short one may stand for a very large one: an anchor counts as often as it is named.
So a file's events are looked at one by one before anything is made of them. Tags, which could ask for any conversion,
are refused, and so is a key that is there twice.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from ..errors import SoapstoneError, TopologyError
from ..files import read_bytes, shortened

MAX_BYTES = 32 * 2**20
MAX_NODES = 2**20
MAX_DEPTH = 20
MAX_CHARACTERS = 1000  # of a name or a number
_Safe: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # the former is ten times faster
_TAG = "tag:yaml.org,2002:"
_INT = r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+"
_FLOAT = r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)"
_PLAIN = (  # the type of a value without quotes, and the characters that it may begin with
    ("null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    ("bool", r"true|True|TRUE|false|False|FALSE", list("tTfF")),
    ("int", _INT, list("-+0123456789")),
    ("float", _FLOAT, list("-+.0123456789")),
    ("merge", "<<", ["<"]),  # not in 1.2's core, but used with anchors
)


class _Loader(_Safe):  # type: ignore[misc]
    yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012  none of version 1.1

    def construct_mapping(self, node: Any, deep: bool = False) -> Any:
        seen = set()
        for key, _ in node.value:
            name = key.value if key.tag == f"{_TAG}merge" else self.construct_object(key, deep=True)
            if isinstance(key, yaml.ScalarNode) and name in seen:
                line = key.start_mark.line + 1
                raise TopologyError(f"has the key {shortened(name)} twice, the second time in line {line}; remove one")
            seen.add(name if isinstance(key, yaml.ScalarNode) else id(key))
        return super().construct_mapping(node, deep)


class _Dumper(yaml.SafeDumper):
    """Quotes strings that either version would not read as a string."""


for _type, _pattern, _first in _PLAIN:
    for _each in (_Loader, _Dumper):
        _each.add_implicit_resolver(_TAG + _type, re.compile(f"(?:{_pattern})$"), _first)


def _read_int(loader: Any, node: yaml.ScalarNode) -> int:
    text = str(loader.construct_scalar(node))
    return int(text, 0) if text.startswith(("0o", "0x")) else int(text)


def _read_float(loader: Any, node: yaml.ScalarNode) -> float:
    number = float(str(loader.construct_scalar(node)).lower().replace(".inf", "inf").replace(".nan", "nan"))
    return int(number) if number.is_integer() else number


_Loader.add_constructor(f"{_TAG}int", _read_int)
_Loader.add_constructor(f"{_TAG}float", _read_float)


def read_yaml(path: Path) -> Any:
    """What the file holds. Raises TopologyError where that is no YAML of ours, and OSError where it cannot be read."""
    try:
        return parse_yaml(read_bytes(path, MAX_BYTES).decode())
    except UnicodeDecodeError:
        raise TopologyError("cannot be read: it is not text") from None
    except SoapstoneError as error:
        raise TopologyError(str(error)) from None


def parse_yaml(text: str) -> Any:
    """The data in the text. Raises TopologyError if it is not YAML of this kind."""
    try:
        _check(yaml.parse(text, Loader=_Safe))
        return yaml.load(text, Loader=_Loader)
    except SoapstoneError:
        raise
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise TopologyError(f"is not YAML: {shortened(' '.join(str(error).split()))}") from None


def written_yaml(data: Any) -> str:
    """The data as text, with each of the innermost lists and mappings on one line."""
    return str(yaml.dump(data, Dumper=_Dumper, sort_keys=False, default_flow_style=None, width=1000))


def _check(events: Iterator[Any]) -> None:
    """Raise TopologyError for what no topology needs, and for more than MAX_NODES, with those of anchors each time that
    they are named."""
    anchors: dict[str, int] = {}  # the nodes inside
    open_: list[list[Any]] = [[None, 0]]  # anchor and nodes of each container around this place
    for event in events:
        if isinstance(event, yaml.CollectionEndEvent):
            anchor, size = open_.pop()
        elif isinstance(event, yaml.NodeEvent):
            anchor, size = event.anchor, 1
            _check_event(event)
            if isinstance(event, yaml.CollectionStartEvent):
                open_.append([anchor, size])
                if len(open_) > MAX_DEPTH:
                    raise TopologyError(f"has more than {MAX_DEPTH} lists or mappings inside one another")
                continue
            if isinstance(event, yaml.AliasEvent):
                anchor, size = None, anchors.get(event.anchor or "", MAX_NODES)  # it may be inside itself
        else:
            continue
        if anchor is not None:
            anchors[anchor] = size
        open_[-1][1] += size
        if open_[-1][1] > MAX_NODES:
            raise TopologyError(f"has more than {MAX_NODES} values; it is not one of our files")


def _check_event(event: Any) -> None:
    if getattr(event, "tag", None) is not None:
        raise TopologyError(f"has the tag {shortened(event.tag)}; write plain names and numbers")
    if len(getattr(event, "value", "")) > MAX_CHARACTERS:
        raise TopologyError(
            f"has a name or a number of more than {MAX_CHARACTERS} characters, {shortened(event.value)}"
        )
