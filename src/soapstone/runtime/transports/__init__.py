"""How ranks talk: the interface, and gloo, NCCL and threads behind it."""

from .default import default_transport
from .encoding import carried
from .gloo import GlooTransport
from .interfaces import use_interface
from .joining import joined
from .nccl import NcclTransport
from .protocol import Incoming, Outgoing, Pair, Pending, Row, Transport
from .threads import ThreadTransport, alone, run_threads

__all__ = [
    "GlooTransport",
    "Incoming",
    "NcclTransport",
    "Outgoing",
    "Pair",
    "Pending",
    "Row",
    "ThreadTransport",
    "Transport",
    "alone",
    "carried",
    "default_transport",
    "joined",
    "run_threads",
    "use_interface",
]
