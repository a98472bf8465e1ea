"""How a model trains, beside its graph, its topology and its strategy: alike for whoever predicts, searches or runs."""

from __future__ import annotations

from dataclasses import dataclass, field

from ..costs import AnalyticCosts, Costs
from ..errors import SoapstoneError
from ..files import shortened
from ..topology import Topology

BUCKET_BYTES, GPU_BUCKET_BYTES = 4 * 2**20, 25 * 2**20  # over gloo, and over NCCL, which likes them larger


@dataclass(frozen=True, slots=True)
class Training:
    """`costs` say how long each part of an op takes; the optimizer is sgd, momentum, adam or adamw. Gradients with the
    same holders that backward completes one after the other are summed in buckets of `bucket_bytes`: 0 is one by one,
    None what suits the devices. Weights that a strategy shards are gathered as gradients are summed, at most
    `groups_ahead` groups of about that size before they are used. Raises SoapstoneError for anything else."""

    costs: Costs = field(default_factory=AnalyticCosts)
    optimizer: str = "adam"
    bucket_bytes: int | None = None
    groups_ahead: int = 1

    def __post_init__(self) -> None:
        size = self.bucket_bytes
        if not isinstance(self.costs, Costs):
            raise SoapstoneError(f"costs={shortened(self.costs)} answer no questions; use ss.AnalyticCosts()")
        if not isinstance(self.optimizer, str):
            raise SoapstoneError(f"optimizer={shortened(self.optimizer)} is not a name; use one such as 'adam'")
        if size is not None and (type(size) is not int or not 0 <= size < 2**62):
            raise SoapstoneError(f"bucket_bytes={shortened(size)} is not a number of bytes; use 0 for one by one")
        if type(self.groups_ahead) is not int or not 0 <= self.groups_ahead < 2**20:
            raise SoapstoneError(f"groups_ahead={shortened(self.groups_ahead)} is not a number of groups; 1 is usual")

    def bucket_bytes_on(self, topology: Topology) -> int:
        """The size of a bucket on these devices."""
        if self.bucket_bytes is not None:
            return self.bucket_bytes
        return BUCKET_BYTES if topology.devices[0].kind.startswith("cpu") else GPU_BUCKET_BYTES


def check_training(given: object) -> None:
    """Raise SoapstoneError unless it is a Training."""
    if not isinstance(given, Training):
        raise SoapstoneError(f"training={shortened(given)} does not say how to train; use one such as ss.Training()")
