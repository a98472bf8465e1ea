"""The names that outsiders may rely on, frozen; and importing the package stays free of torch."""

import subprocess
import sys

import soapstone

PUBLIC_NAMES = [
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


def test_public_names_are_frozen() -> None:
    assert sorted(soapstone.__all__) == PUBLIC_NAMES


def test_public_names_are_at_most_21() -> None:
    assert len(PUBLIC_NAMES) <= 21


def test_every_public_name_exists() -> None:
    missing = [name for name in soapstone.__all__ if not hasattr(soapstone, name)]
    assert not missing


def test_importing_the_package_does_not_import_torch() -> None:
    program = "import sys, soapstone; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
