"""How ranks talk: the interface, and gloo, NCCL and threads behind it."""

from .default import default_transport
from .joining import joined
from .ordered import OrderedTransport
from .processes import ProcessTransport
from .protocol import Pending, Transport
from .threads import ThreadTransport, alone, run_threads

__all__ = [
    "OrderedTransport",
    "Pending",
    "ProcessTransport",
    "ThreadTransport",
    "Transport",
    "alone",
    "default_transport",
    "joined",
    "run_threads",
]
