"""Execute a strategy: the plan, the transports, and the model that trains."""

from .parallel import Parallel, parallelize
from .threads import ThreadTransport, run_threads
from .transport import Transport

__all__ = ["Parallel", "ThreadTransport", "Transport", "parallelize", "run_threads"]
