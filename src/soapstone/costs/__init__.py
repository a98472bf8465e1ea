"""What gives a compute task its duration."""

from .analytic import AnalyticCosts, device_kinds, peak_flops
from .protocol import Costs, OpTimes, PreparedCosts, Question, unheard

__all__ = ["AnalyticCosts", "Costs", "OpTimes", "PreparedCosts", "Question", "device_kinds", "peak_flops", "unheard"]
