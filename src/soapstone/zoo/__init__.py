"""The paper's models and today's, as workloads with random data: `load("nmt", batch=64)`."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from ..errors import CaptureError, meant
from ..files import shortened
from .catalogue import ENTRIES, Entry, Size

if TYPE_CHECKING:
    from ..tracing import Workload

__all__ = ["Entry", "entry", "load", "names"]
LIMIT = 2**40  # of a batch, or a size


def names() -> list[str]:
    return list(ENTRIES)


def entry(name: str) -> Entry:
    """What there is to know about a model without making it. Raises CaptureError for an unknown name."""
    if name not in ENTRIES:
        remedy = meant(name, ENTRIES, f"it has {', '.join(ENTRIES)}")
        raise CaptureError(f"the zoo has no {name!r}; {remedy}")
    return ENTRIES[name]


def load(name: str, *, batch: int | None = None, **sizes: Size) -> Workload:
    """A model of the zoo with random weights and data; `batch` is the whole batch. Raises CaptureError for an unknown
    name or size."""
    found = entry(name)
    check(name, batch, sizes)
    return _make(found, found.batch if batch is None else batch, {**found.sizes, **sizes})


def check(name: str, batch: int | None, sizes: dict[str, Size]) -> None:
    """Raise CaptureError unless a model has these sizes. Needs no torch."""
    found = entry(name)
    count = found.batch if batch is None else batch
    if type(count) is not int or not 1 <= count < LIMIT:
        raise CaptureError(f"batch={shortened(batch)} is not a number of samples; use 1 or more, below {LIMIT}")
    for key, size in sizes.items():
        if key not in found.sizes:
            remedy = meant(key, found.sizes, f"it has {', '.join(found.sizes)}")
            raise CaptureError(f"{name} has no size {key!r}; {remedy}")
        _check(key, size, like=found.sizes[key])


def _check(key: str, size: Size, like: Size) -> None:
    numbers = size if isinstance(size, tuple) else (size,)
    if isinstance(size, tuple) != isinstance(like, tuple) or any(
        type(n) is not int or not 1 <= n < LIMIT for n in numbers
    ):
        raise CaptureError(f"{key}={shortened(size)} is not a size; give it as {like!r}, with numbers from 1")


def _make(found: Entry, batch: int, sizes: dict[str, Size]) -> Workload:
    from ..tracing import Workload
    from .data import DATA, LOSSES

    module, _, kind = found.model.partition(".")
    own = {key: size for key, size in sizes.items() if key not in found.data_only}
    try:
        model = getattr(import_module(f".{module}", __name__), kind)(**own)
        inputs, target = DATA[found.data](batch, sizes)
    except (ValueError, RuntimeError, ZeroDivisionError) as error:
        raise CaptureError(f"{kind} cannot be made with these sizes: {error}") from None
    return Workload(model, inputs, loss=LOSSES[found.loss], targets=(target,))
