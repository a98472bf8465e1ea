"""A first cost model, a roofline: a part takes as long as its flops or its bytes, whichever is slower, plus a launch.

The table's peaks are data-sheet figures in float32, the efficiencies are guesses; a later model replaces them.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from ..errors import SoapstoneError
from ..graph import ITEM_SIZES, Op
from .protocol import OpTimes


@dataclass(frozen=True, slots=True)
class DeviceCosts:
    flops: float  # a second
    bandwidth: float  # bytes a second
    launch: int  # ns a task


DEVICES = {
    # One core with AVX2 at 2.5 GHz does 80 GFLOP/s at best; half of it, and a share of the memory bus.
    "cpu": DeviceCosts(40e9, 8e9, 20_000),
    # NVIDIA's data sheet for the P100 (NVLink): 10.6 TFLOP/s, 732 GB/s.
    "p100": DeviceCosts(0.6 * 10.6e12, 0.75 * 732e9, 8_000),
}
UPDATE_BYTES = {"sgd": 12, "momentum": 20, "adam": 28, "adamw": 28}  # read and written for one float32 element


class AnalyticCosts:
    """Costs from a table of devices. Raises SoapstoneError for a kind or an optimizer that it does not have."""

    def times(self, op: Op, extents: tuple[int, ...], device_kind: str, combines: bool) -> OpTimes:
        device = _device(device_kind)
        share = prod(extents) / prod(dim.size for dim in op.dims)
        values = [op.values[o.value] for o in (*op.inputs, *op.outputs)]
        moved = sum(prod(v.shape) * ITEM_SIZES[v.dtype] for v in values) * share
        work = max(op.flops * share / device.flops, moved / device.bandwidth) * 1e9
        forward, backward = device.launch + round(work), device.launch + round(2 * work)
        if not combines or not op.finishes:
            return OpTimes(forward, backward)
        finish = device.launch + round(0.2 * work)
        return OpTimes(forward, backward, finish, finish)

    def update(self, device_kind: str, optimizer: str) -> tuple[int, float]:
        if optimizer not in UPDATE_BYTES:
            raise SoapstoneError(f"no costs for optimizer {optimizer!r}; there are {', '.join(UPDATE_BYTES)}")
        device = _device(device_kind)
        return device.launch, UPDATE_BYTES[optimizer] / device.bandwidth * 1e9


def _device(kind: str) -> DeviceCosts:
    if kind not in DEVICES:
        raise SoapstoneError(f"no analytic costs for devices of kind {kind!r}; there are {', '.join(DEVICES)}")
    return DEVICES[kind]
