"""What the commands share: how a model is named, and how things are printed."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import wraps
from typing import Annotated, Any, get_type_hints

import typer
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, JustifyMethod, RenderableType
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from ..errors import SoapstoneError, meant, printable
from ..graph import OperatorGraph
from ..loading import DTYPES, Request, load_graph
from ..topology import Topology
from ..zoo.catalogue import Size
from . import completion

ModelName = Annotated[
    str,
    typer.Argument(
        metavar="MODEL", help="A name from `soapstone models`, or file.py:function.", autocompletion=completion.models
    ),
]
Batch = Annotated[int | None, typer.Option(min=1, help="The whole batch, for a model of the zoo.")]
BatchPerDevice = Annotated[int | None, typer.Option(min=1, help="The batch for each device, instead of the whole one.")]
Precision = Annotated[
    str,
    typer.Option(
        help="autocast: as torch.autocast casts to bfloat16; mixed: computed in bfloat16, parameters and optimizer "
        "state in float32; or all of it in float32, bfloat16, float16 or float64."
    ),
]
Sizes = Annotated[
    list[str] | None, typer.Option("--size", metavar="NAME=N", help="A size of a zoo model, such as layers=4.")
]
Chunk = Annotated[int, typer.Option(min=1, help="Time steps of a recurrent layer to one op.")]
BatchNorm = Annotated[str, typer.Option(help="global: statistics of the whole batch; local: of each part.")]
Interface = Annotated[
    str | None,
    typer.Option(help="The network interface for gloo and NCCL; by default the one that reaches MASTER_ADDR."),
]
Fresh = Annotated[bool, typer.Option("--fresh", help="Capture anew, whatever the cache holds.")]
Quiet = Annotated[bool, typer.Option("-q", "--quiet", help="Print results and errors, no progress and no remarks.")]
Verbose = Annotated[bool, typer.Option("--verbose", help="With an error, print all that led to it.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, for machines.")]


class _Speech:
    quiet = verbose = False


def hush(quiet: bool = True) -> None:
    """Whether remarks and progress are left out."""
    _Speech.quiet = quiet


def is_quiet() -> bool:
    return _Speech.quiet


def explain_errors(verbose: bool = True) -> None:
    """Whether errors come with what led to them."""
    _Speech.verbose = verbose


def is_verbose() -> bool:
    return _Speech.verbose


def takes_volume(command: Callable[..., None]) -> Callable[..., None]:
    """A command that also takes --quiet and --verbose, as all of them do."""
    hints = get_type_hints(command, include_extras=True)

    @wraps(command)
    def run(quiet: bool = False, verbose: bool = False, **given: Any) -> None:
        if quiet:
            hush()
        explain_errors(verbose)
        command(**given)

    own = inspect.signature(command).parameters.values()
    parameters = [p.replace(annotation=hints[p.name], kind=inspect.Parameter.KEYWORD_ONLY) for p in own]
    volume = {"quiet": Quiet, "verbose": Verbose}
    parameters += [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=False, annotation=hint)
        for name, hint in volume.items()
    ]
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {p.name: p.annotation for p in parameters}
    return run


def print_json(data: Any) -> None:
    print(json.dumps(data, indent=2))


COMFORT = 24  # what a column that wraps should have
Cell = str | Text


def bold(text: str) -> Text:
    return Text(text, style="bold")


@dataclass
class Listing:
    """A table without lines. Columns in `wraps` break into lines where there is no room; where that leaves them too
    little, the table does without its optional columns, as many as it must, in this order."""

    headers: tuple[str, ...]
    right: tuple[str, ...] = ()
    wraps: tuple[str, ...] = ()
    optional: tuple[str, ...] = ()
    rows: list[tuple[Cell, ...]] = field(default_factory=list)

    def add_row(self, *cells: Cell) -> None:
        self.rows.append(cells)

    def table(self, console: Console) -> Table:
        for count in range(len(self.optional) + 1):
            kept = [header for header in self.headers if header not in self.optional[:count]]
            widths = [min(self._width(h), COMFORT) if h in self.wraps else self._width(h) for h in kept]
            if sum(widths) + 2 * len(widths) <= console.width:
                break
        table = Table(box=None)
        for header in kept:
            justify: JustifyMethod = "right" if header in self.right else "left"
            table.add_column(header, justify=justify, no_wrap=header not in self.wraps)
        places = [self.headers.index(header) for header in kept]
        for row in self.rows:
            table.add_row(*(row[place] for place in places))
        return table

    def _width(self, header: str) -> int:
        place = self.headers.index(header)
        cells = (header, *(row[place] for row in self.rows))
        return max(cell_len(cell) if isinstance(cell, str) else cell.cell_len for cell in cells)


class Terminal(Console):
    """A console that prints strings literally, since they may have names from any file in them: rich's tags and escape
    codes have no effect. Styled output is a `Text`."""

    def __init__(self, **options: Any) -> None:
        super().__init__(markup=False, emoji=False, highlight=False, **options)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterator[Segment]:
        for segment in super().render(renderable, options):
            text = segment.text if segment.control else printable(segment.text)
            yield segment if text is segment.text else Segment(text, segment.style)


def print_all(*parts: Listing | Cell) -> None:
    """Tables as wide as they need to be, and a line a sentence, unless a person's terminal is narrower."""
    console = Terminal()
    if not console.is_terminal:
        console = Terminal(width=1000)
    for part in parts:
        shown = part.table(console) if isinstance(part, Listing) else part
        console.print(shown, soft_wrap=not isinstance(part, Listing) and not console.is_terminal)


@contextmanager
def progress(what: str) -> Iterator[None]:
    """Say on standard error what takes a while; with a spinner where a person looks."""
    console = Terminal(stderr=True, quiet=is_quiet())
    if not console.is_terminal or is_quiet():
        console.print(f"{what} ...")
        yield
        return
    with console.status(what):
        yield


def say(note: str, *, always: bool = False) -> None:
    """A remark, on standard error; `always` where it says what went wrong."""
    quiet = is_quiet() and not always
    Terminal(stderr=True, quiet=quiet).print(note, soft_wrap=True)


def graph_of(
    model: str,
    batch: int | None,
    sizes: list[str] | None,
    chunk: int,
    batch_norm: str,
    fresh: bool,
    *,
    precision: str = "float32",
    per_device: int | None = None,
    devices: Topology | None = None,
) -> OperatorGraph:
    """The graph that a command's arguments ask for."""
    return captured(request_of(model, batch, sizes, chunk, batch_norm, precision, per_device, devices), fresh)


def request_of(
    model: str, batch: int | None, sizes: list[str] | None, chunk: int, batch_norm: str, precision: str = "float32",
    per_device: int | None = None, devices: Topology | None = None,
) -> Request:  # fmt: skip
    """The model that a command's arguments name."""
    if per_device is not None and devices is not None:
        if batch is not None:
            raise SoapstoneError("--batch and --batch-per-device say the same thing twice; give one of them")
        batch = per_device * devices.num_devices
    options: dict[str, Any] = {"chunk": chunk, "batch_norm": batch_norm}
    dtype = precision if precision in DTYPES else "float32"
    if precision == "autocast":
        rules = "cpu" if devices is not None and devices.devices[0].kind.startswith("cpu") else "cuda"
        options["precision"] = f"autocast:{rules}"
    elif precision == "mixed":
        options["precision"] = precision
    elif dtype != precision:
        known = [*DTYPES, "autocast", "mixed"]
        remedy = meant(precision, known, f"use {', '.join(known)}")
        raise SoapstoneError(f"precision {precision!r} is not known; {remedy}")
    return Request(model, batch, dict(map(_size, sizes or [])), options, dtype)


def captured(request: Request, fresh: bool) -> OperatorGraph:
    with ExitStack() as stack:
        return load_graph(
            request,
            fresh=fresh,
            announce=lambda: stack.enter_context(progress(f"Capturing {request.model} by torch.export")),
        )


def _size(text: str) -> tuple[str, Size]:
    name, equals, numbers = text.partition("=")
    try:
        values = tuple(int(n) for n in numbers.split(","))
    except ValueError:
        values = ()
    if not name or not equals or not values:
        raise SoapstoneError(f"--size {text!r} is not NAME=N; write it as layers=4, or blocks=3,4,6,3")
    return name, values[0] if len(values) == 1 else values


def duration(seconds: float) -> str:
    """Milliseconds with three digits at least, to tell apart what takes less than one."""
    ms = seconds * 1e3
    return f"{ms:,.1f} ms" if ms >= 10 else f"{ms:.2f} ms" if ms >= 1 else f"{ms:.3f} ms"


def milliseconds(seconds: float) -> str:
    """Milliseconds with three digits at least, and no more than microseconds."""
    return "0 ms" if seconds < 5e-7 else duration(seconds)
