"""`soapstone cache`: what is kept on disk, and how to be rid of it."""

from __future__ import annotations

from typing import Annotated

import typer

from .. import cache
from ..graph import scaled
from .common import AsJson, print_all, print_json

Clear = Annotated[bool, typer.Option("--clear", help="Remove all captured graphs. Measured times stay.")]


def cache_command(clear: Clear = False, as_json: AsJson = False) -> None:
    """Show how large the cache is, or clear it. It holds captured graphs, and the times that profile measured."""
    removed = cache.clear() if clear else 0
    sizes = [found.st_size for found in cache.entries().values()]
    times = cache.folder() / "times.sqlite"
    measured = times.stat().st_size if times.is_file() else 0
    if as_json:
        found = {"graphs": len(sizes), "bytes": sum(sizes), "limit": cache.limit(), "times_bytes": measured}
        print_json({"path": str(cache.folder()), **found, "removed": removed})
        return
    shown = f"{_graphs(len(sizes))}, {scaled(sum(sizes), 'B')} of at most {scaled(cache.limit(), 'B')}."
    lines = [f"{_graphs(removed)} {'is' if removed == 1 else 'are'} removed."] if clear else [shown]
    if measured:
        lines.append(f"Measured times, {scaled(measured, 'B')}: to forget them, remove {times}.")
    print_all(str(cache.folder()), *lines)


def _graphs(count: int) -> str:
    return f"{count} captured graph{'' if count == 1 else 's'}"
