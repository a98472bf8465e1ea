"""`devices.yaml`, read once: what devices have, and what rows of kernels make of it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

from ...errors import SoapstoneError
from ...graph import ITEM_SIZES
from ...rules import RULES, facts_of
from ...topology.document import parse_yaml
from .seconds import Figures

PRODUCTS = ("dense", "batched", "conv", "attention")
FITTED_ON = "h200"
REACHED = 0.85  # of the bandwidth, where nothing else holds a pass up
TENSOR_CORES = 4  # times the peak of float32: what only they reach


@dataclass(frozen=True, slots=True)
class Speed:
    """Kernels of one row on one kind of device. `launch` is what a host takes to launch one, in ns: 0 where the device
    is its own host, which then takes `own` seconds more."""

    figures: Figures
    peak: float
    bandwidth: float
    units: float
    tensor: float  # what of a slow-down on tensor cores is felt; 0 without them
    launch: float
    own: float


def device_kinds() -> list[str]:
    """The kinds of device that the table has."""
    return list(table()["devices"])


def peak_flops(kind: str, dtype: str) -> float | None:
    """The flops a second that a device of that kind has at its best; None for a kind that the table does not have."""
    device = table()["devices"].get(kind)
    return None if device is None else float(device.get(dtype, device["float32"]))


def device_of(kind: str) -> dict[str, Any]:
    devices: dict[str, dict[str, Any]] = table()["devices"]
    if kind not in devices:
        raise SoapstoneError(f"no analytic costs for devices of kind {kind!r}; there are {', '.join(devices)}")
    return devices[kind]


@cache
def row_of(kind: str) -> str:
    """The row of a step's kernels: of its kind, where that has its own, or else of its family."""
    return str(table()["kinds"].get(kind, facts_of(kind).family))


@cache
def speed_of(row: str, dtype: str, kind: str, tf32: bool) -> Speed:
    device = device_of(kind)
    precision = precision_of(row, dtype, kind, tf32)
    found, measured = figures_of(row, precision), not (row.startswith("conv") and precision == "plain")
    family, own = row.partition(".")[0], device.get("efficiency", {})
    a_unit = _a_unit(device, "tf32" if precision == "tf32" else dtype)
    share = _share_elsewhere(found.share, a_unit) if measured else found.share
    share *= own.get("conv" if family.startswith("conv") else family, own.get("dense", 1.0))
    memory = _share_elsewhere(found.memory, _a_unit(device, "bandwidth")) * own.get("memory", 1.0)
    found = found._replace(share=share, memory=memory)
    launch = launches_of(row) * float(device["launch"])
    peak = float(device["tf32"] if precision == "tf32" else device.get(dtype, device["float32"]))
    rates = peak, float(device["bandwidth"]), float(device["units"])
    tensor = a_unit if row.startswith(PRODUCTS) and precision != "plain" else 0.0
    if kind == "cpu":
        return Speed(found._replace(base=0.0), *rates, tensor, 0.0, launch * 1e-9)
    return Speed(found, *rates, tensor, launch, 0.0)


def _share_elsewhere(share: float, a_unit: float) -> float:
    """The share of its peak or bandwidth that a device reaches which has `a_unit` times as much of it a unit as the one
    that was fitted to. Where that reached little, instructions held it up as well, and it is units that issue them."""
    return share if share >= REACHED else 1 / (1 / REACHED + (1 / share - 1 / REACHED) * a_unit)


def _a_unit(device: dict[str, Any], what: str) -> float:
    """Peak or bandwidth a unit, in those of the device that was fitted to."""
    fitted, units = device_of(FITTED_ON), float(max(device["units"], 1))
    rate, other = (float(row.get(what, row["float32"])) for row in (device, fitted))
    return rate / other * float(fitted["units"]) / units


def launches_of(row: str) -> float:
    """How many launches of a pointwise kernel a host's work for one of these is worth."""
    name, _, way = row.partition(".")
    forward, backward = table()["launches"].get(name, (1.0, 1.0))
    return float(backward if way and way != "forward" else forward)


def precision_of(row: str, dtype: str, kind: str, tf32: bool) -> str:
    """What a kernel computes in. PyTorch's default is TF32 for convolutions (`torch.backends.cudnn.allow_tf32`), and
    not for other products (`torch.set_float32_matmul_precision`)."""
    device = device_of(kind)
    if dtype == "float32" and "tf32" in device and (row.startswith("conv") or (tf32 and row.startswith(PRODUCTS))):
        return "tf32"
    if row.startswith(PRODUCTS):
        peak = float(device.get(dtype, device["float32"]))
        return "half" if peak >= TENSOR_CORES * float(device["float32"]) else "plain"
    return "half" if ITEM_SIZES[dtype] == 2 else "plain"


def figures_of(row: str, precision: str) -> Figures:
    """A pass has a base and a share of the bandwidth, and a wait where it has lanes."""
    rows = table()["figures"][row]
    base, *others = rows.get(precision, rows["plain"])
    if len(others) < 4:
        memory, wait = (*others, 0.0)[:2]
        return Figures(base * 1e-6, 1.0, memory, 0.0, wait)
    return Figures(base * 1e-6, *others)


@cache
def table() -> dict[str, Any]:
    text = (resources.files("soapstone.costs") / "devices.yaml").read_text(encoding="utf-8")
    found: dict[str, Any] = parse_yaml(text)
    return found


def _check_families() -> None:
    """Raise SoapstoneError unless every rule's family has costs, so that none is charged for another by oversight."""
    known = dict.fromkeys(row.partition(".")[0] for row in table()["figures"])
    for kind, rule in RULES.items():
        if rule.family not in known:
            raise SoapstoneError(f"no costs for {rule.family!r}, the family of {kind!r}; there are {', '.join(known)}")


_check_families()
