"""YAML as topology files have it: numbers, names, lists and mappings, and not more of them than fit into memory.

A file may come from anywhere, and a short one may stand for a very large one: an anchor counts as often as it is named.
So a file's events are looked at one by one before anything is made of them. Tags, which could ask for any conversion,
are refused.
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


class _Loader(_Safe):  # type: ignore[misc]
    """YAML 1.1 takes 12.5e9 for a string, since its exponent has no sign; here it is a number, and whole where it can
    be, as bytes must."""


def _read_float(loader: Any, node: yaml.ScalarNode) -> float:
    number = float(loader.construct_yaml_float(node))
    return int(number) if number.is_integer() else number


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?[0-9]+(\.[0-9]*)?[eE][-+]?[0-9]+$"), list("-+0123456789")
)
_Loader.add_constructor("tag:yaml.org,2002:float", _read_float)


def read_yaml(path: Path) -> Any:
    """What the file holds. Raises TopologyError where that is no YAML of ours, and OSError where it cannot be read."""
    try:
        text = read_bytes(path, MAX_BYTES).decode()
        _check(yaml.parse(text, Loader=_Safe))
        return yaml.load(text, Loader=_Loader)
    except UnicodeDecodeError:
        raise TopologyError("cannot be read: it is not text") from None
    except SoapstoneError as error:
        raise TopologyError(str(error)) from None
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise TopologyError(f"is not YAML: {shortened(' '.join(str(error).split()))}") from None


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
