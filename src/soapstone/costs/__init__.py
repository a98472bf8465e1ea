"""What gives a compute task its duration."""

from .analytic import AnalyticCosts
from .protocol import Costs, OpTimes

__all__ = ["AnalyticCosts", "Costs", "OpTimes"]
