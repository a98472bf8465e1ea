"""Soapstone finds, shows and runs the fastest way to train a PyTorch model on the machines one has.

Importing this package does not import torch; the names that need it load it at their first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from . import baselines, report
from .costs import AnalyticCosts
from .errors import SoapstoneError
from .files import version
from .graph import OperatorGraph
from .searching import search
from .simulator import Simulation, Simulator, Training, simulate
from .space import Space
from .strategy import Configuration, Strategy
from .topology import Topology

if TYPE_CHECKING:
    from . import zoo
    from .costs.measured import MeasuredCosts
    from .runtime import parallelize, run_threads
    from .tracing import Workload, capture
    from .tuning import tune

__all__ = [
    "AnalyticCosts",
    "Configuration",
    "MeasuredCosts",
    "OperatorGraph",
    "Simulation",
    "Simulator",
    "SoapstoneError",
    "Space",
    "Strategy",
    "Topology",
    "Training",
    "Workload",
    "baselines",
    "capture",
    "parallelize",
    "report",
    "run_threads",
    "search",
    "simulate",
    "tune",
    "zoo",
]

_LAZY = {
    "MeasuredCosts": "costs.measured",
    "Workload": "tracing",
    "capture": "tracing",
    "parallelize": "runtime",
    "run_threads": "runtime",
    "tune": "tuning",
}


def __getattr__(name: str) -> Any:
    if name == "zoo":
        return import_module(".zoo", __name__)
    if name == "__version__":
        return version()
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_LAZY[name]}", __name__), name)


def __dir__() -> list[str]:
    return __all__
