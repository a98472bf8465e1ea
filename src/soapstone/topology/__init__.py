"""The machines: devices and switches joined by links; presets, files and detection."""

from .cluster import Topology
from .detection import kind_of
from .layout import about_presets, preset_names
from .vertices import Device, Link

__all__ = ["Device", "Link", "Topology", "about_presets", "kind_of", "preset_names"]
