"""The machines: devices and switches joined by links; presets, files and detection."""

from .cluster import Topology, neighbours_of
from .detection import is_kind, kind_of
from .layout import about_presets, preset_names
from .smaller import first_devices
from .vertices import Bus, Device, Link, Sum

__all__ = [
    "Bus",
    "Device",
    "Link",
    "Sum",
    "Topology",
    "about_presets",
    "first_devices",
    "is_kind",
    "kind_of",
    "neighbours_of",
    "preset_names",
]
