"""Costs that are measured on this machine, part by part, and remembered."""

from .measured_costs import MeasuredCosts

__all__ = ["MeasuredCosts"]
