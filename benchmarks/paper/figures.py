"""Pictures of several panels, each written as PNG and as SVG."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING

from soapstone.files import write_atomically

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = ("#4878cf", "#ee854a", "#6acc64", "#d65f5f", "#956cb4", "#8c613c", "#dc7ec0", "#797979")


@contextmanager
def figure(path: Path, size: tuple[float, float]) -> Iterator[Figure]:
    """Written to the path with .png and with .svg at its end."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    drawn = Figure(figsize=size, layout="constrained")
    yield drawn
    for suffix in ("png", "svg"):
        content = BytesIO()
        with rc_context({"svg.hashsalt": "soapstone"}):  # the same picture is the same file
            drawn.savefig(content, format=suffix, dpi=130, metadata={"Date": None} if suffix == "svg" else None)
        write_atomically(path.with_suffix(f".{suffix}"), content.getvalue())


def plain(axes: Axes, title: str, x: str = "", y: str = "") -> Axes:
    axes.set(title=title, xlabel=x, ylabel=y)
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    return axes
