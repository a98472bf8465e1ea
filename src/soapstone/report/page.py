"""A report as one HTML file that needs nothing else: the assets and the payload are written into it.

The page reads the payload as JSON from a script element of its own. Every `<`, `>` and `&` of the JSON is escaped, so
no name can end that element; the page's code shows names as text only, and its policy forbids it to load anything.
"""

from __future__ import annotations

import html
import json
import re
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from ..files import write_atomically

STYLES = ("vendor/uPlot.min.css", "style.css", "sections.css")
LIBRARIES = (
    ("vendor/uPlot.LICENSE", "vendor/uPlot.iife.min.js"),
    ("vendor/dagre.min.js.LEGAL.txt", "vendor/dagre.min.js"),
)
# Our own files share one scope, in this order: what a file uses when it is loaded stands above it.
SCRIPTS = (
    "dom.js",
    "units.js",
    "palette.js",
    "columns.js",
    "header.js",
    "words.js",
    "boxes.js",
    "layout.js",
    "cells.js",
    "details.js",
    "shapes.js",
    "drawing.js",
    "strategy.js",
    "lanes.js",
    "task.js",
    "pixels.js",
    "paint.js",
    "minimap.js",
    "gestures.js",
    "laneview.js",
    "timeline.js",
    "bars.js",
    "curve.js",
    "tables.js",
    "cluster.js",
    "main.js",
)
_ESCAPES = str.maketrans({"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029"})


def render(payload: dict[str, Any]) -> str:
    """Return the page that shows a payload. Raises ValueError where the payload holds what JSON cannot."""
    data = json.dumps(payload, ensure_ascii=False, allow_nan=False, separators=(",", ":")).translate(_ESCAPES)
    values = {
        "title": html.escape(str(payload.get("title", "report"))),
        "style": "\n".join(map(_asset, STYLES)),
        "libraries": "\n".join(f"{_comment(_asset(licence))}\n{_asset(code)}" for licence, code in LIBRARIES),
        "script": "\n".join(map(_asset, SCRIPTS)),
        "payload": data,
    }  # put in all at once: a title may look like a place for something else
    return re.sub(r"\{\{(\w+)\}\}", lambda place: values[place[1]], _asset("index.html"))


def write_page(payload: dict[str, Any], path: str | Path) -> None:
    """Write the page, whole or not at all. Raises SoapstoneError where the folder cannot be written."""
    write_atomically(path, render(payload))


def _comment(text: str) -> str:
    return text if text.startswith("/*") else f"/*!\n{text}\n*/"


@cache
def _asset(name: str) -> str:
    text = resources.files(__package__).joinpath("assets", *name.split("/")).read_text(encoding="utf-8")
    return re.sub(r"^//# sourceMappingURL=.*$", "", text, flags=re.MULTILINE)  # of a file that is not there
