"""What is kept between commands, damaged and hostile: it is repaired, or made anew."""

from __future__ import annotations

import gzip
import json
import os
import random
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

import soapstone as ss
from soapstone import cache as graphs
from soapstone.costs.measured.store import Store
from soapstone.files import checksum_of
from tests.support.models import captured
from tests.support.mutations import INSTEAD, VALUES, WHOLE, damaged, guarded, places_in, with_text
from tests.support.seeds import seeds

MANY = 60  # mutations to a seed


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SOAPSTONE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


REQUEST = {"model": "mlp"}


def kept() -> Path:
    """The file of a graph that is in the cache."""
    graphs.keep(REQUEST, captured("mlp"), {})
    (path,) = graphs.entries()
    return path


def assert_rebuilt(path: Path, what: object) -> None:
    """Whatever is there now, a graph can be kept, and is found."""
    with guarded():
        found = graphs.find(REQUEST)
        assert found is None or isinstance(found, ss.OperatorGraph), what
        assert kept() == path, what
        again = graphs.find(REQUEST)
    assert again is not None, what
    assert again.fingerprint == captured("mlp").fingerprint, what


@pytest.mark.parametrize("seed", seeds(2, 50))
def test_a_damaged_graph_in_the_cache_is_captured_anew(seed: int, own_cache: Path) -> None:
    rng, path = random.Random(seed), kept()
    raw = path.read_bytes()
    entry = json.loads(gzip.decompress(raw))
    places = [place for place in places_in(entry) if place[:1] != ("graph",) or rng.random() < 0.1]
    for number in range(MANY // 2):
        path.write_bytes(damaged(raw, rng))
        assert_rebuilt(path, number)
        place, value = rng.choice(places), rng.choice(list(VALUES))
        path.write_bytes(gzip.compress(with_text(entry, place, VALUES[value]).encode(), 1))
        assert_rebuilt(path, (place, value))


def test_whatever_is_in_the_place_of_a_graph_is_replaced(own_cache: Path) -> None:
    path = kept()
    for instead, make in INSTEAD.items():
        path.unlink()
        make(path)
        assert_rebuilt(path, instead)
    for what, content in WHOLE.items():
        for packed in (content, gzip.compress(content, 1)):
            path.write_bytes(packed)
            assert_rebuilt(path, what)


def test_a_graph_that_would_fill_the_memory_is_not_unpacked(own_cache: Path) -> None:
    path = kept()
    piece = gzip.compress(bytes(2**24), 1)
    path.write_bytes(piece * 200)
    assert_rebuilt(path, "three gigabytes of nothing")


@pytest.mark.parametrize("source", ["/dev/zero", "pipe", "\0", "\ud800", "x" * 5000])
def test_a_graph_whose_sources_cannot_be_read_is_captured_anew(source: str, own_cache: Path) -> None:
    path = kept()
    os.mkfifo(own_cache / "pipe")
    entry = json.loads(gzip.decompress(path.read_bytes()))
    about = {key: value for key, value in entry["about"].items() if key != "checksum"}
    about["sources"] = {str(own_cache / source) if source == "pipe" else source: "0"}
    entry["about"] = {**about, "checksum": checksum_of(about)}
    path.write_bytes(gzip.compress(json.dumps(entry).encode()))
    with guarded():
        assert graphs.find(REQUEST) is None
    assert_rebuilt(path, source)


ROWS = {f"op {number}": (number, 2.5, 3) for number in range(300)}


def assert_store_works(store: Store, what: object) -> None:
    with guarded():
        found = store.read()
        for _ in range(2):  # damage may be seen as late as when what was written is read
            store.write({"more": (1, 2.5)})
            again = store.read()
    assert again["more"] == (1, 2.5), what
    assert all(isinstance(key, str) and isinstance(value, tuple) for key, value in found.items()), what


@pytest.mark.parametrize("seed", seeds(1, 30))
def test_damaged_times_are_dropped_or_what_is_left_of_them_used(seed: int, tmp_path: Path) -> None:
    rng, store = random.Random(seed), Store("machine", tmp_path / "times.sqlite")
    store.write(ROWS)
    assert store.read() == ROWS
    raw = store.path.read_bytes()
    for number in range(MANY):
        where = raw[:200] if number % 2 else raw  # a flip in the header matters most
        store.path.write_bytes(damaged(where, rng) + raw[len(where) :])
        assert_store_works(store, number)


def test_whatever_is_in_the_place_of_times_is_replaced(tmp_path: Path) -> None:
    store = Store("machine", tmp_path / "times.sqlite")
    for what, content in WHOLE.items():
        store.path.write_bytes(content)
        assert_store_works(store, what)
    for instead, make in INSTEAD.items():
        store.path.unlink()
        make(store.path)
        if instead != "a folder":
            assert_store_works(store, instead)
            continue
        with guarded():
            store.write(ROWS)
            assert store.read() == {}  # times last as long as the process then
        store.path.rmdir()
        store.path.touch()


TABLES = {
    "other columns": "CREATE TABLE measured (a, b)",
    "another table": "CREATE TABLE other (a, b)",
    "no end": """CREATE VIEW measured (machine, what, numbers) AS
                 WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT 'machine', x, '[1]' FROM n""",
}


@pytest.mark.parametrize("name", TABLES)
def test_times_with_other_tables_are_dropped(name: str, tmp_path: Path) -> None:
    store = Store("machine", tmp_path / "times.sqlite")
    with closing(sqlite3.connect(store.path)) as connection:
        connection.execute(TABLES[name])
    assert_store_works(store, name)


def test_rows_that_are_no_numbers_are_passed_over(tmp_path: Path) -> None:
    store = Store("machine", tmp_path / "times.sqlite")
    store.write({"good": (1, 2)})
    with closing(sqlite3.connect(store.path)) as connection, connection:
        for number, text in enumerate([*VALUES.values(), b"\xff\xfe", 3, None]):
            row = (f"row {number}", text, store._checksum(f"row {number}", text))
            connection.execute("INSERT INTO measured VALUES ('machine', ?, ?, ?)", row)
        bad = "CAST(X'FF80' AS TEXT)"
        connection.execute(f"INSERT INTO measured VALUES ('machine', {bad}, {bad}, {bad})")
    found = store.read()
    assert found.pop("good") == (1, 2)
    assert all(all(type(number) in (int, float) for number in numbers) for numbers in found.values())
