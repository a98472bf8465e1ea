"""Plots as PNG or SVG: how training scales, how a search went, how predictions hold. Needs matplotlib."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import SoapstoneError
from ..files import check_writable, write_atomically

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SUFFIXES = (".png", ".svg")
_MARKERS = "osD^vP*X"


def plot_scaling(throughputs: Mapping[str, Mapping[int, float]], title: str, path: str | Path) -> None:
    """Samples a second on each device, over the number of devices, a line for each approach: level is perfect."""
    with _axes(path, title, "devices", "samples a second and device") as axes:
        for (name, found), marker in zip(throughputs.items(), _MARKERS * len(throughputs)):
            counts = sorted(found)
            axes.plot(counts, [found[n] / n for n in counts], marker=marker, label=name)
        axes.set_xscale("log", base=2)
        ticks = sorted({n for found in throughputs.values() for n in found})
        axes.set_xticks(ticks, [str(n) for n in ticks])
        axes.set_ylim(bottom=0)
        axes.legend(frameon=False)


def plot_predictions(rows: Sequence[tuple[str, float, float]], title: str, path: str | Path) -> None:
    """Measured over predicted milliseconds, a point for each (name, predicted, measured) in seconds; those of one name
    look alike."""
    with _axes(path, title, "measured, ms", "predicted, ms") as axes:
        names = list(dict.fromkeys(name for name, _, _ in rows))
        for name, marker in zip(names, _MARKERS * len(names)):
            points = [(measured * 1e3, predicted * 1e3) for own, predicted, measured in rows if own == name]
            axes.plot(*zip(*points), marker, label=name)
        ends = [time * 1e3 for _, *times in rows for time in times]
        line = [min(ends) / 1.5, max(ends) * 1.5]
        axes.plot(line, line, color="grey", linewidth=1, label="equal")
        axes.fill_between(line, [0.7 * x for x in line], [1.3 * x for x in line], alpha=0.12, color="grey", label="30%")
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.legend(frameon=False, fontsize="small")


def plot_curves(curves: Mapping[str, Sequence[tuple[float, float]]], title: str, path: str | Path) -> None:
    """The best iteration so far, ms, over the seconds of a search, a line for each."""
    with _axes(path, title, "seconds of search", "best iteration, ms") as axes:
        for name, curve in curves.items():
            seconds, best = zip(*curve)
            axes.step(seconds, [1e3 * time for time in best], where="post", label=name)
        axes.set_xscale("log")
        axes.set_ylim(bottom=0)
        axes.legend(frameon=False)


def check_picture(path: str | Path) -> None:
    """Raise SoapstoneError where no plot could be drawn or written there, before the work that it is for begins."""
    if Path(path).suffix.lower() not in SUFFIXES:
        raise SoapstoneError(f"a plot is written as PNG or SVG; name it such as plot.png, not {path}")
    if find_spec("matplotlib") is None:
        raise SoapstoneError("plots need matplotlib; install it by: pip install 'soapstone[plot]'")
    check_writable(path)


@contextmanager
def _axes(path: str | Path, title: str, x: str, y: str) -> Iterator[Axes]:
    check_picture(path)
    from matplotlib.figure import Figure

    suffix = Path(path).suffix.lower()
    figure = Figure(figsize=(7, 4.5), layout="constrained")
    axes: Any = figure.add_subplot()
    axes.set(title=title, xlabel=x, ylabel=y)
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    yield axes
    drawn = BytesIO()
    metadata = {"Date": None} if suffix == ".svg" else None
    figure.savefig(drawn, format=suffix[1:], dpi=160, metadata=metadata)
    write_atomically(path, drawn.getvalue())
