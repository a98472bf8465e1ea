"""Damages the caches between commands: captured graphs and measured times, which nobody edits. A graph that is not
found is captured again, and a row of times is measured again. Any other difference counts as silent."""

from __future__ import annotations

import gzip
import json
import os
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from soapstone import cache
from soapstone.costs.measured.store import Numbers, Store
from tests.support.models import captured

from .mutations import BYTES, Damage, Tree, joined_with
from .tally import ANOTHER, HARMLESS, REFUSED, SILENT, Tally
from .trying import try_all

REQUEST, OTHER = {"model": "mlp", "batch": None}, {"model": "cnn", "batch": None}


def captures(count: int, seed: int) -> Tally:
    """Graphs in the cache folder: their bytes, and what is inside."""
    tally, graph = Tally(), captured("mlp")
    with _own_folder():
        cache.keep(OTHER, captured("cnn"), {})
        (path,) = cache.entries()
        others = {"other": path.read_bytes()}
        path.unlink()
        cache.keep(REQUEST, graph, {})
        (path,) = cache.entries()
        raw = path.read_bytes()

        def judge(changed: bytes) -> str:
            path.write_bytes(changed)
            found = cache.find(REQUEST)
            outcome = REFUSED if found is None else HARMLESS if found.fingerprint == graph.fingerprint else SILENT
            cache.keep(REQUEST, graph, {})
            again = cache.find(REQUEST)
            assert again is not None, "what is captured anew is not kept"
            assert again.fingerprint == graph.fingerprint, "what is captured anew is not found"
            return outcome

        text = gzip.decompress(raw)
        inside = (
            BYTES
            | Tree(json.loads(text)).damages
            | {"joined": joined_with({"other": gzip.decompress(others["other"])})}
        )
        damages = {**BYTES, "joined with another": joined_with(others)}
        damages |= {f"inside: {kind}": _packed(text, damage) for kind, damage in inside.items()}
        try_all(tally, damages, raw, judge, count, seed)
    return tally


def _packed(text: bytes, damage: Damage) -> Damage:
    return lambda raw, rng: gzip.compress(damage(text, rng), 1)


@contextmanager
def _own_folder() -> Iterator[Path]:
    before = os.environ.get("SOAPSTONE_CACHE")
    with tempfile.TemporaryDirectory() as folder:
        os.environ["SOAPSTONE_CACHE"] = folder
        try:
            yield Path(folder)
        finally:
            os.environ.pop("SOAPSTONE_CACHE")
            if before is not None:
                os.environ["SOAPSTONE_CACHE"] = before


ROWS: dict[str, Numbers] = {
    f"{number:032x} 01 64x{number}": (number, 2.5 * number, 3, 4, 5, 6, 7, 8**7) for number in range(60)
}
OTHERS = {f"other {what}": numbers for what, numbers in ROWS.items()}  # of this machine, too
NEW = {"more": (1, 2.5)}


def times(count: int, seed: int) -> Tally:
    """The file of measured times. A row that is lost is measured anew; one that is changed would be believed."""
    tally = Tally()
    with tempfile.TemporaryDirectory() as folder:
        store, other = (Store("machine", Path(folder) / f"{name}.sqlite") for name in ("times", "other"))
        other.write(OTHERS)
        store.write(ROWS)
        raw = store.path.read_bytes()

        def judge(changed: bytes) -> str:
            store.path.write_bytes(changed)
            found = store.read()
            for _ in range(2):  # damage may be seen as late as when what was written is read
                store.write(NEW)
                again = store.read()
            assert again.pop("more", None) == NEW["more"], "what is measured anew is not kept"
            rows = {*found.items(), *again.items()}
            if not rows <= {*ROWS.items(), *OTHERS.items()}:
                return SILENT
            return ANOTHER if not rows <= {*ROWS.items()} else HARMLESS if found == ROWS else REFUSED

        damages = {**BYTES, "joined with another": joined_with({"other": other.path.read_bytes()})}
        damages |= {"a row changed": _row_changed, "rows exchanged": _rows_exchanged}
        try_all(tally, damages, raw, judge, count, seed)
    return tally


def _row_changed(raw: bytes, rng: object) -> bytes:
    return _with_sql(raw, "UPDATE measured SET numbers = replace(numbers, '2097152', '2097153')")


def _rows_exchanged(raw: bytes, rng: object) -> bytes:
    return _with_sql(
        raw,
        "UPDATE measured SET what = what || '!' WHERE what LIKE '%64x1'",
        "UPDATE measured SET what = replace(what, '64x2', '64x1') WHERE what LIKE '%64x2'",
    )


def _with_sql(raw: bytes, *statements: str) -> bytes:
    with tempfile.NamedTemporaryFile(suffix=".sqlite") as file:
        Path(file.name).write_bytes(raw)
        with closing(sqlite3.connect(file.name)) as connection, connection:
            for statement in statements:
                connection.execute(statement)
        return Path(file.name).read_bytes()
