"""What the paper ran: six models on two clusters, and how one may read what it leaves open."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import lru_cache, partial

import soapstone as ss
from soapstone.graph import OperatorGraph
from soapstone.loading import Request, load_graph

MODELS = {
    "alexnet": "AlexNet",
    "inception-v3": "Inception-v3",
    "resnet-101": "ResNet-101",
    "rnntc": "RNNTC",
    "rnnlm": "RNNLM",
    "nmt": "NMT",
}
BATCH_NORMS = {"inception-v3": ("local", "global"), "resnet-101": ("local", "global")}  # the others have none
PER_NODE = {"h100": 8}  # 4 on the paper's clusters
TRAINING = ss.Training(optimizer="sgd")
search = partial(ss.search, training=TRAINING, sharding=False, recompute=False, microbatches=1)  # the paper's space


@dataclass(frozen=True)
class Setting:
    """A model on a machine. The batch is 64 (AlexNet: 256) for each device, as in the paper's figures, or for all."""

    model: str
    machine: str
    batch: str = "per device"
    batch_norm: str = "local"

    @property
    def data(self) -> dict[str, str]:
        return asdict(self)

    @property
    def samples(self) -> int:
        return batch_of(self.model) * (self.topology.num_devices if self.batch == "per device" else 1)

    @property
    def topology(self) -> ss.Topology:
        return ss.Topology.parse(self.machine)

    @property
    def graph(self) -> OperatorGraph:
        return _graph(self.model, self.samples, self.batch_norm)

    def simulated(self, strategy: ss.Strategy) -> ss.Simulation:
        return ss.simulate(self.graph, self.topology, strategy, training=TRAINING)


@lru_cache(maxsize=2)
def _graph(model: str, samples: int, batch_norm: str) -> OperatorGraph:
    return load_graph(Request(model, samples, {}, {"batch_norm": batch_norm}))


def batch_of(model: str) -> int:
    """The paper's."""
    return 256 if model == "alexnet" else 64


def machine(kind: str, devices: int) -> str:
    """So many devices of a kind, in full nodes where they are more than one node has."""
    most = PER_NODE.get(kind, 4)
    return f"{kind}:1x{devices}" if devices <= most else f"{kind}:{devices // most}x{most}"
