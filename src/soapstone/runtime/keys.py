"""A device's tensors by what they are to it: what segments take and give, and what a step looks its values up by.

Keys are hashed several times in each step, so they are tuples, which do that in C: a dataclass takes two to four times
as long to look up. But tuples are equal across classes; `kind`, which nobody passes, tells keys of two classes apart.
"""

from __future__ import annotations

from typing import Literal, NamedTuple


class BatchInput(NamedTuple):
    """What the device reads of a tensor of the batch."""

    tensor: int
    kind: Literal["batch input"] = "batch input"


class State(NamedTuple):
    """A parameter or buffer, whichever windows of it are read."""

    tensor: int
    kind: Literal["state"] = "state"


class Window(NamedTuple):
    """What a part reads of a parameter or buffer; window 0 is all of the device's shard."""

    tensor: int
    window: int
    kind: Literal["window"] = "window"


class Output(NamedTuple):
    """An output part of a tensor, made on this device."""

    tensor: int
    part: int
    kind: Literal["output"] = "output"


class Payload(NamedTuple):
    """What a flow takes to another device."""

    flow: int
    kind: Literal["payload"] = "payload"


class Received(NamedTuple):
    """What a flow brought from another device."""

    flow: int
    kind: Literal["received"] = "received"


class Gathered(NamedTuple):
    """Weights that a gather brought together on this device."""

    row: int
    kind: Literal["gathered"] = "gathered"


class Partial(NamedTuple):
    """The partial result of one part."""

    op: int
    part: int
    kind: Literal["partial"] = "partial"


class Share(NamedTuple):
    """The partials of a group on this device, together."""

    op: int
    group: int
    kind: Literal["share"] = "share"


class Total(NamedTuple):
    """The partials of a group on all devices, together."""

    op: int
    group: int
    kind: Literal["total"] = "total"


class Kept(NamedTuple):
    """A value from before a combine that the finish of the same part reads."""

    op: int
    part: int
    value: int
    kind: Literal["kept"] = "kept"


class Update(NamedTuple):
    """The next value of a buffer, or of a part's box of it."""

    tensor: int
    part: int
    kind: Literal["update"] = "update"


Given = BatchInput | State | Window  # is here when a step begins
FromOthers = Received | Total | Gathered
ToOthers = Payload | Share  # whose gradient comes from others
Key = Given | Output | FromOthers | ToOthers | Partial | Kept | Update
