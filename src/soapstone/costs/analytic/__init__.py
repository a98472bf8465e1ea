"""Costs from a table of devices: what a part computes and moves, and how fast a device is at it."""

from .analytic_costs import AnalyticCosts
from .table import device_kinds, peak_flops

__all__ = ["AnalyticCosts", "device_kinds", "peak_flops"]
