"""What can go wrong in a step on a rank, and what all of them hear of it."""

from __future__ import annotations

import torch

from ..errors import RankError
from ..graph import scaled
from .execute import Executor

ON_NAN = ("ignore", "stop", "skip")
MOST_SKIPPED = 10  # steps in a row


class Faults:
    """Of one rank. `on_nan` says what follows a loss that is not finite; to look at it, the host waits for the step."""

    def __init__(self, executor: Executor, on_nan: str) -> None:
        self._executor, self._on_nan = executor, on_nan
        self.accepts = None if on_nan == "ignore" else self._look
        self.is_nonfinite = False  # the last loss
        self._in_a_row = 0  # steps that were skipped

    def _look(self, loss: torch.Tensor) -> bool:
        self.is_nonfinite = not bool(loss.isfinite())
        self._in_a_row = self._in_a_row + 1 if self.is_nonfinite else 0
        return not self.is_nonfinite

    def handle(self, step: int) -> None:
        """A loss was not finite. Raises RankError on all ranks, or lets the optimizer find no gradients."""
        self._executor.store.drop_gradients()
        if self._on_nan == "stop" or self._in_a_row > MOST_SKIPPED:
            skipped = f", nor are those of {MOST_SKIPPED} steps before it that were skipped" * (self._on_nan == "skip")
            raise RankError(f"the loss of step {step} is not finite{skipped}: {self._where()}")

    def _where(self) -> str:
        own = [name for name, tensor in self._executor.store.parameters() if not bool(tensor.isfinite().all())]
        found = self._executor.transport.exchange(own[:1])
        for rank, names in enumerate(found):
            if names:
                return f"{names[0]!r} is not, on rank {rank}, since an earlier step; go on from an older checkpoint"
        return "all weights are; lower the learning rate, clip gradients, or look at the batch"

    def announce(self, error: BaseException, step: int) -> BaseException:
        """Let other ranks hear of an error; what is to be raised here."""
        transport = self._executor.transport
        if is_out_of_memory(error):
            device, simulation = self._executor.device, self._executor.plan.simulation
            peak = "" if device < 0 else f" ({scaled(simulation.peak_memory[device], 'B')} were predicted)"
            error = RankError(
                f"rank {transport.rank} ran out of memory in step {step}{peak}; use a smaller batch, or a strategy "
                "that needs less: fsdp, or one that is searched with --sharding and --recompute"
            )
        transport.fail(error)
        return error


def is_out_of_memory(error: BaseException) -> bool:
    """Whether a device, or the host, had no memory left."""
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or "can't allocate memory" in str(error)
