"""Choose by running: the few best strategies beside DistributedDataParallel, in interleaved rounds."""

from .outcome import PROMISE, Row, Standing, Tuned
from .tuner import BUDGET, LIMIT, check_limits, tune

__all__ = ["BUDGET", "LIMIT", "PROMISE", "Row", "Standing", "Tuned", "check_limits", "tune"]
