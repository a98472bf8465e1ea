"""Execute a strategy: the plan, the transports, and the model that trains."""

from .launch import parallelize
from .parallel import Parallel
from .threads import ThreadTransport, run_threads
from .transport import Transport

__all__ = ["Parallel", "ThreadTransport", "Transport", "parallelize", "run_threads"]
