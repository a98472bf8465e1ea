"""Choose by running: the few best strategies beside DistributedDataParallel, in interleaved rounds."""

from .tune import BUDGET, LIMIT, PROMISE, Row, Standing, Tuned, tune

__all__ = ["BUDGET", "LIMIT", "PROMISE", "Row", "Standing", "Tuned", "tune"]
