"""How one op is split, where its parts run, what of its parameters each of several holders keeps, whether what it makes
is kept for backward, and for how many microbatches at a time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import prod
from types import MappingProxyType

import numpy as np

from ..errors import StrategyError, meant
from ..files import shortened
from ..graph import Op

Native = tuple[list[int], list[int], int, bool, int]  # degrees, devices, number of shard, is recomputed, in flight
SHARDS = ("none", "optimizer", "all")  # in the core's order
MOST_DEGREES = 100  # more than any op has dims


@dataclass(frozen=True)
class Configuration:
    """One op's degrees by dim name, and the device of each part in row-major order over the op's dims. Dims that are
    not named have degree 1. Two parts may share a device.

    `shard` is for the op's trained parameters, where several devices hold the same piece of one: with "optimizer" each
    keeps the optimizer's state and updates an equal share, and weights are gathered before forward (ZeRO); with "all"
    each also keeps no more of the weights than its share, and they are gathered before forward and again before
    backward (FSDP). With `recompute` what the op makes is dropped once forward has read it, and made again for
    backward.

    Where a strategy has microbatches, forward of no more than `in_flight` of them is done before backward of the first
    of these; None: of all."""

    degrees: Mapping[str, int] = field(default_factory=dict)
    devices: tuple[int, ...] = (0,)
    shard: str = "none"
    recompute: bool = False
    in_flight: int | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.degrees, Mapping):
            raise StrategyError(f"degrees must map dim names to numbers, not be {shortened(self.degrees)}")
        if not isinstance(self.devices, tuple | list):
            raise StrategyError(f"devices must be a tuple of device numbers, not {shortened(self.devices)}")
        if self.shard not in SHARDS:
            raise StrategyError(f"shard must be one of {', '.join(SHARDS)}, not {shortened(self.shard)}")
        if type(self.recompute) is not bool:
            raise StrategyError(f"recompute must be true or false, not {shortened(self.recompute)}")
        if self.in_flight is not None and (type(self.in_flight) is not int or not 1 <= self.in_flight < 2**31):
            raise StrategyError(f"in_flight must be a whole number from 1 up, not {shortened(self.in_flight)}")
        if len(self.degrees) > MOST_DEGREES:
            raise StrategyError(f"there are {len(self.degrees)} degrees, which no op has dims for")
        for name, degree in self.degrees.items():
            if type(degree) is not int or not 1 <= degree < 2**31:
                what = f"the degree of {shortened(name)}"
                raise StrategyError(f"{what} must be a whole number from 1 up, not {shortened(degree)}")
        kept = {name: degree for name, degree in sorted(self.degrees.items()) if degree > 1}
        object.__setattr__(self, "degrees", MappingProxyType(kept))
        object.__setattr__(self, "devices", tuple(self.devices))
        if self.num_parts != len(self.devices):
            raise StrategyError(
                f"degrees {shortened(kept)} make {self.num_parts} parts, but {len(self.devices)} devices are named; "
                "name one device a part, in row-major order of the parts"
            )

    def __hash__(self) -> int:
        return hash((tuple(self.degrees.items()), self.devices, self.shard, self.recompute, self.in_flight))

    def __reduce__(self) -> tuple[type[Configuration], tuple[dict[str, int], tuple[int, ...], str, bool, int | None]]:
        return Configuration, (dict(self.degrees), self.devices, self.shard, self.recompute, self.in_flight)

    def __str__(self) -> str:
        split = " ".join(f"{name}={degree}" for name, degree in self.degrees.items())
        shard = "" if self.shard == "none" else f" shard={self.shard}"
        again = " recompute" if self.recompute else ""
        flight = f" in_flight={self.in_flight}" if self.in_flight else ""
        return f"{split or 'whole'}{shard}{again}{flight} on {written(self.devices)}"

    @property
    def num_parts(self) -> int:
        return prod(self.degrees.values())

    @property
    def keeps_less(self) -> bool:
        """Whether devices do not keep all that they use."""
        return self.shard != "none" or self.recompute

    def degrees_of(self, op: Op) -> list[int]:
        """The degree of each of the op's dims, in order."""
        return [self.degrees.get(dim.name, 1) for dim in op.dims]

    def native(self, op: Op) -> Native:
        """As the core knows it."""
        return self.degrees_of(op), list(self.devices), SHARDS.index(self.shard), self.recompute, self.in_flight or 0

    def check(self, op: Op, num_devices: int) -> None:
        """Raise StrategyError unless the op can be split so and the devices exist."""
        where = f"the configuration of op {op.name!r}"
        for name, degree in self.degrees.items():
            dim = op.dim(name)
            if dim is None:
                known = ", ".join(d.name for d in op.dims) or "none"
                remedy = meant(name, [d.name for d in op.dims], f"its dims are: {known}")
                raise StrategyError(f"{where} splits {shortened(name)}, which it does not have; {remedy}")
            if not dim.splittable:
                raise StrategyError(f"{where} splits {name!r}, which is needed whole; give it degree 1")
            if degree > dim.size:
                raise StrategyError(f"{where} splits {name!r} of size {dim.size} in {degree}; use at most {dim.size}")
        for device in self.devices:
            if type(device) is not int or not 0 <= device < num_devices:
                raise StrategyError(
                    f"{where} names device {shortened(device)}; the topology has 0 to {num_devices - 1}"
                )

    def fitted(self, op: Op) -> Configuration:
        """The nearest that is legal for an op: dims that it cannot split stay whole, degrees end at a dim's size, and
        the devices of the parts that remain are kept."""
        names = [name for name in self.degrees if op.dim(name) is None]
        given = [*(dim.name for dim in op.dims if dim.name in self.degrees), *names]
        kept = {}
        for name in given:
            dim = op.dim(name)
            kept[name] = min(self.degrees[name], dim.size) if dim is not None and dim.splittable else 1
        numbers = np.arange(self.num_parts).reshape([self.degrees[name] for name in given])
        left = numbers[tuple(slice(kept[name]) for name in given)].reshape(-1)
        return replace(self, degrees=kept, devices=tuple(self.devices[i] for i in left))


def written(devices: tuple[int, ...]) -> str | list[int]:
    """A range where the devices are one."""
    first, last = devices[0], devices[-1]
    step = devices[1] - first if len(devices) > 1 else 1
    if step < 1 or list(devices) != list(range(first, last + 1, step)):
        return list(devices)
    return f"{first}" if len(devices) == 1 else f"{first}-{last}" if step == 1 else f"{first}-{last}:{step}"
