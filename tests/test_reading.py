"""Reading files: duplicate keys are refused, YAML is read as version 1.2, and numbers have a limited length."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st

import soapstone as ss
from soapstone import cache
from soapstone.errors import SoapstoneError, StrategyError, TopologyError
from soapstone.files import parse_json, read_json, whole_number
from soapstone.topology import Device
from soapstone.topology.document import parse_yaml, written_yaml
from tests.support.models import captured

TOPOLOGY = ss.Topology.parse("cpu:1x2")

TWICE = {
    "at the top": ('{"a": 1,\n "b": 2,\n "a": 3}', "a", 3),
    "inside": ('{"ops": {\n"x": {"degrees": {"n": 2,\n\n"n": 4}}}}', "n", 4),
    "written otherwise": ('{"a": 1,\n"\\u0061": 2}', "a", 2),
    "after a string like it": ('{"b": "{\\"a\\": 1, \\"a\\": 2}",\n"c": ["a", "a"],\n"b": 1}', "b", 3),
    "in a list": ('[{"a": 1}, {"a": 1},\n {"a": 1, "a": 1}]', "a", 2),
}


@pytest.mark.parametrize(("text", "key", "line"), TWICE.values(), ids=TWICE)
def test_a_key_that_is_twice_in_json_is_named_with_its_line(text: str, key: str, line: int, tmp_path: Path) -> None:
    path = tmp_path / "twice.json"
    path.write_text(text)
    with pytest.raises(
        SoapstoneError, match=f"twice.json is not valid JSON \\(the key '{key}' is there twice, .*{line}\\)"
    ):
        read_json(path)


@settings(max_examples=200, deadline=None)
@given(st.recursive(st.none() | st.text(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)))
def test_json_without_such_keys_is_read(value: Any) -> None:
    assert parse_json(json.dumps(value).encode()) == value


def test_a_strategy_with_an_op_twice_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "s.json"
    path.write_text(
        '{"kind": "soapstone strategy", "format": 2, "default": {"devices": "0"},\n'
        '"ops": {"*": {"devices": "0"},\n "*": {"devices": "1"}}}'
    )
    with pytest.raises(SoapstoneError, match=r"the key '\*' is there twice, .* line 3"):
        ss.Strategy.load(path, captured("mlp"), TOPOLOGY)


def test_a_key_that_is_twice_in_yaml_is_named_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "t.yaml"
    path.write_text("devices:\n- {name: a, kind: cpu, node: 0, memory: 1,\n   node: 1}\nlinks: []\n")
    with pytest.raises(TopologyError, match=r"t.yaml: has the key 'node' twice, .* line 3"):
        ss.Topology.load(path)


VALUES = {  # as YAML 1.2's core schema has them
    "010": 10, "0o10": 8, "0x1F": 31, "+12": 12, "-0": 0, "1:30": "1:30", "190:20:30": "190:20:30", "1_000": "1_000",
    "0b11": "0b11", "1e3": 1000, "1E-3": 0.001, ".5": 0.5, "5.": 5, "12.5e9": 12_500_000_000, "1.5": 1.5,
    ".inf": float("inf"), "-.INF": float("-inf"),
    "yes": "yes", "no": "no", "on": "on", "off": "off", "y": "y", "true": True, "False": False,
    "null": None, "~": None, "": None, "2001-01-01": "2001-01-01", "=": "=", "1e": "1e",
}  # fmt: skip


@pytest.mark.parametrize(("text", "value"), VALUES.items())
def test_yaml_is_read_as_version_1_2_has_it(text: str, value: Any) -> None:
    found = parse_yaml(f"a: {text}")["a"]
    assert (found, type(found)) == (value, type(value))


@pytest.mark.parametrize("field", ["node: 1:30", "memory: 1_000", "node: yes", "duplex: yes"])
def test_a_value_of_yaml_1_1_is_refused_where_it_is_no_text(field: str, tmp_path: Path) -> None:
    path, (name, value) = tmp_path / "t.yaml", field.split(": ")
    rows: dict[str, Any] = {"name": "a", "kind": "cpu", "node": 0, "memory": 1} | (
        {name: 0} if name != "duplex" else {}
    )
    links = "- {source: a, target: b, bandwidth: 1, duplex: yes}" if name == "duplex" else ""
    devices = ", ".join(f"{key}: {value if key == name else row}" for key, row in rows.items())
    path.write_text(
        f"devices:\n- {{{devices}}}\n- {{name: b, kind: cpu, node: 0, memory: 1}}\nlinks:\n{links or '  []'}\n"
    )
    with pytest.raises(TopologyError, match=f"{name} must be .*not '{value}'"):
        ss.Topology.load(path)


NAMES = st.text("0123456789abcdefox:_.+-<=~#&*!|>'\"%@` ", min_size=1, max_size=12)


@settings(max_examples=200, deadline=None)
@given(NAMES)
@example("010")
@example("0o10")
@example("1e3")
@example("1:30")
@example("yes")
@example("null")
@example("<<")
@example("=")
@example("2001-01-01")
def test_what_is_written_as_yaml_is_read_back_the_same(name: str) -> None:
    value = {"name": name, name: [1, 2.5, 1e300, 5e-324, True, None, -(2**60)]}
    assert parse_yaml(written_yaml(value)) == value
    assert yaml.safe_load(written_yaml(value)) == value


def test_a_topology_with_odd_names_is_read_back_the_same(tmp_path: Path) -> None:
    devices = tuple(Device(name, "cpu", 0, 2**30) for name in ("1e3", "0o10", "yes", "010", "1:30", "null", "1_0"))
    topology = ss.Topology(devices[:1], ())
    for device in devices:
        topology = ss.Topology((device,), ())
        topology.save(tmp_path / "t.yaml")
        assert ss.Topology.load(tmp_path / "t.yaml") == topology


@pytest.mark.parametrize(
    "text", ["9" * 5000, "9" * 5000 + "GB", "1e400", "9" * 30 + "T", "nan", "inf", "-1", "1.5.2", "\x1b[0m"]
)
def test_a_cache_limit_that_is_no_size_is_refused(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOAPSTONE_CACHE_LIMIT", text)
    with pytest.raises(SoapstoneError, match="is not a size; write it as 500MB or 2GiB"):
        cache.limit()


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("0", 0),
        ("007", 7),
        ("9" * 18, int("9" * 18)),
        ("9" * 19, None),
        ("9" * 5000, None),
        ("", None),
        ("-1", None),
        ("٣", None),
    ],
)
def test_a_whole_number_is_of_few_digits(text: str, number: int | None) -> None:
    assert whole_number(text) == number


def test_what_is_there_but_no_file_is_called_that(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rather than "there is no file x7.py; did you mean x7.py?"."""
    monkeypatch.chdir(tmp_path)
    from soapstone.loading import Request, check_request

    os.mkdir("folder.py")
    os.mkfifo("pipe.py")
    os.symlink("gone.py", "link.py")
    for suffix in (".json", ".yaml"):
        os.symlink(f"gone{suffix}", f"link{suffix}")
        os.mkdir(f"folder{suffix}")
    Path("fodler.py").touch()
    for name, problem in (
        ("folder", "is a folder"),
        ("pipe", "is not a plain file"),
        ("link", "links to something that does not exist"),
    ):
        with pytest.raises(SoapstoneError, match=f"{name}.py {problem}; name a file"):
            check_request(Request(f"{name}.py:make"))
    with pytest.raises(SoapstoneError, match=r"there is no file foldr\.py; did you mean fodler\.py"):
        check_request(Request("foldr.py:make"))
    with pytest.raises(SoapstoneError, match=r"link\.yaml links to something that does not exist"):
        ss.Topology.load("link.yaml")
    with pytest.raises(SoapstoneError, match=r"folder\.yaml is not a plain file"):
        ss.Topology.load("folder.yaml")
    with pytest.raises((StrategyError, SoapstoneError), match=r"link\.json"):
        ss.Strategy.load("link.json", captured("mlp"), TOPOLOGY)
