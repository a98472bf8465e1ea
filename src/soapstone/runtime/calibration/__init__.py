"""Measure how the ranks' messages travel, with this runtime's own transport, and write it down as a topology."""

from .assembly import Calibration
from .calibrator import Calibrator

__all__ = ["Calibration", "Calibrator"]
