"""Measure how the ranks' messages travel, with this runtime's own transport, and write it down as a topology."""

from .calibrator import Calibration, Calibrator

__all__ = ["Calibration", "Calibrator"]
