"""What gives a compute task its duration."""

from .analytic import AnalyticCosts, device_kinds
from .protocol import Costs, OpTimes, Question

__all__ = ["AnalyticCosts", "Costs", "OpTimes", "Question", "device_kinds"]
