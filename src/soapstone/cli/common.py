"""What the commands share: how a model is named, and how things are printed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from ..errors import SoapstoneError
from ..graph import OperatorGraph
from ..loading import Request, load_graph
from ..topology import Topology
from ..zoo.catalogue import Size

ModelName = Annotated[str, typer.Argument(metavar="MODEL", help="A name from `soapstone models`, or file.py:function.")]
Batch = Annotated[int | None, typer.Option(help="The whole batch, for a model of the zoo.")]
BatchPerDevice = Annotated[int | None, typer.Option(help="The batch for each device, instead of the whole one.")]
Dtype = Annotated[str, typer.Option(help="The model's floating-point type: float32, bfloat16, float16 or float64.")]
Amp = Annotated[
    str, typer.Option(help="Mixed precision: bfloat16 casts as torch.autocast does on the topology's devices.")
]
Sizes = Annotated[
    list[str] | None, typer.Option("--size", metavar="NAME=N", help="A size of a zoo model, such as layers=4.")
]
Chunk = Annotated[int, typer.Option(help="Time steps of a recurrent layer to one op.")]
BatchNorm = Annotated[str, typer.Option(help="global: statistics of the whole batch; local: of each part.")]
Fresh = Annotated[bool, typer.Option("--fresh", help="Capture anew, whatever the cache holds.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, for machines.")]


def print_json(data: Any) -> None:
    print(json.dumps(data, indent=2))


def print_all(*parts: Table | str) -> None:
    """Tables as wide as they need to be, unless a person's terminal is narrower."""
    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=1000)
    for part in parts:
        console.print(part, soft_wrap=isinstance(part, str))


@contextmanager
def progress(what: str) -> Iterator[None]:
    """Say on standard error what takes a while; with a spinner where a person looks."""
    console = Console(stderr=True)
    if not console.is_terminal:
        console.print(f"{what} ...", highlight=False, markup=False)
        yield
        return
    with console.status(escape(what)):
        yield


def say(note: str) -> None:
    """A remark, on standard error."""
    Console(stderr=True, highlight=False).print(note, soft_wrap=True, markup=False)


def graph_of(
    model: str,
    batch: int | None,
    sizes: list[str] | None,
    chunk: int,
    batch_norm: str,
    fresh: bool,
    *,
    dtype: str = "float32",
    per_device: int | None = None,
    devices: Topology | None = None,
) -> OperatorGraph:
    """The graph that a command's arguments ask for."""
    return captured(request_of(model, batch, sizes, chunk, batch_norm, dtype, per_device, devices), fresh)


def request_of(
    model: str, batch: int | None, sizes: list[str] | None, chunk: int, batch_norm: str, dtype: str = "float32",
    per_device: int | None = None, devices: Topology | None = None, amp: str = "",
) -> Request:  # fmt: skip
    """The model that a command's arguments name."""
    if per_device is not None and devices is not None:
        if batch is not None:
            raise SoapstoneError("--batch and --batch-per-device say the same thing twice; give one of them")
        batch = per_device * devices.num_devices
    options: dict[str, Any] = {"chunk": chunk, "batch_norm": batch_norm}
    if amp:
        rules = "cpu" if devices is not None and devices.devices[0].kind.startswith("cpu") else "cuda"
        options["amp"] = f"{rules}:{amp}"
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


def milliseconds(seconds: float) -> str:
    return f"{seconds * 1e3:,.1f} ms"
