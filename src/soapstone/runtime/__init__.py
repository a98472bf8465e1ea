"""Execute a strategy: the plan, the transports, and the model that trains."""

from .launch import parallelize
from .parallel import Parallel
from .transports import ThreadTransport, Transport, run_threads, use_interface

__all__ = ["Parallel", "ThreadTransport", "Transport", "parallelize", "run_threads", "use_interface"]
