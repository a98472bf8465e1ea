"""The model that trains under a strategy: what a user calls on each rank."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from ..errors import RankError
from ..simulator import Simulation
from ..tracing import Workload, flattened
from .agreement import Verdict, agree
from .buffers import LaggingBuffers
from .clipping import clip_grad_norm
from .evaluation import Evaluation
from .execute import Executor, Values
from .faults import Faults
from .guards import Guarded
from .habits import Habits, StepLoss
from .iteration import train
from .records import Record, recorded
from .shapes import Shapes, shapes_of
from .store import Store
from .takeover import Takeover, state_dict_of
from .transports import Transport
from .transports.stopping import GRACE, Stop, stoppable
from .weights import check_state, state_of

if TYPE_CHECKING:
    from .checkpoints import Saver


class Parallel(Habits):
    """One rank of a model under a strategy. Made by `parallelize`."""

    def __init__(
        self, work: Workload, executor: Executor, store: Store, transport: Transport, takeover: Takeover, on_nan: str
    ) -> None:
        self._takeover = takeover  # the model is this Parallel's as long as it lives
        self._work, self._executor, self._store, self._transport = work, executor, store, transport
        self._graph = executor.plan.simulation.graph
        self._shapes = Shapes(work, executor)
        self._evaluations: dict[tuple[tuple[int, ...], ...], Evaluation] = {}
        self._buffers = LaggingBuffers(executor.placement, executor.device, store)
        self._guarded = Guarded(work.model, store)
        self._steps, self._faults = 0, Faults(executor, on_nan)
        self._idle = nn.Parameter(torch.empty(0, device=executor.place))

    @property
    def slices(self) -> tuple[tuple[slice, ...], ...]:
        """What this rank reads of each tensor of the batch; a step takes whole tensors, or just these slices."""
        return self._shapes.first.check.slices

    def step(self, *batch: Any, sync: bool = True) -> torch.Tensor:
        """Forward, backward and gradient sync. Every rank passes the batch, inputs then targets, whole or cut to its
        `slices`, and gets the same loss. A whole batch may have other shapes: each new one is captured once. Gradients
        of the previous step are dropped, unless it had `sync=False`: then new gradients are added to them. Raises
        RankError on every rank if one rank's batch does not fit, and LostRankError if another rank has ended or does
        not answer."""
        batch = flattened(batch)
        program, choice = self._shapes.choose(batch)
        given: list[Values] = []

        def check() -> torch.Tensor | None:
            if program is None:
                return None
            if sync and self._guarded.is_accumulating:
                self._shapes.check_sync(program)
            given.extend(program.given(batch))
            return self._shapes.padded(program.executor.weigh(given))

        described = partial(shapes_of, batch)
        verdict = Verdict(self._transport, check, self._executor.microbatches, choice, described)
        if program is None:
            verdict()
            self._shapes.add(batch)
            return self.step(*batch, sync=sync)
        if program.is_new:
            verdict()
            self._shapes.compare_first(program, batch)
        if not self._guarded.is_accumulating:
            self._store.drop_gradients()
            self._shapes.drop_unsynced()
        self._steps += 1
        self._buffers.change()
        self._transport.note(f"in step {self._steps}")
        try:
            loss = train(program.executor, given, sync, verdict, self._faults.accepts)
            if program.spread is not None:
                program.spread(self._transport, sync=sync)
        except BaseException as error:
            if verdict.refused:
                program.executor.draws.undo()
                self._steps -= 1
                raise
            if (problem := self._faults.announce(error, self._steps)) is error:
                raise
            raise problem from error
        finally:
            self._transport.note(f"after step {self._steps}")
        self._guarded.changes += 1
        self._guarded.is_accumulating = not sync
        self._shapes.ran(program, sync)
        if self._faults.is_nonfinite:
            self._faults.handle(self._steps)
            self._guarded.is_accumulating = False
        return loss.as_subclass(StepLoss)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drop gradients, including those that steps with `sync=False` accumulated. Otherwise `step` does so itself."""
        self._store.drop_gradients()
        self._shapes.drop_unsynced()
        self._guarded.is_accumulating = False

    def _check_synced(self) -> None:
        if self._guarded.is_accumulating:
            raise RankError(
                "the last step had sync=False, so gradients are not summed yet; call this after a step with sync=True"
            )

    def evaluate(self, *inputs: Any) -> torch.Tensor:
        """The model's output in eval mode, whole and on every rank; every rank passes the same whole inputs, of any
        batch size: each new shape is captured once. A model that has its own loss gives that."""
        inputs = flattened(inputs)
        shapes = tuple(tuple(x.shape) if isinstance(x, torch.Tensor) else () for x in inputs)
        if shapes not in self._evaluations:
            self._evaluations[shapes] = Evaluation(self._work, self._executor, inputs)
        self._buffers.catch_up(self._transport)
        evaluation = self._evaluations[shapes]
        if evaluation.stale:
            evaluation.load(self._whole_state())
        return evaluation(inputs)

    @property
    def simulation(self) -> Simulation:
        """The step as it was predicted."""
        return self._executor.plan.simulation

    def watch(self) -> None:
        """Note from now on what happens when."""
        self._executor.spans = []

    def watched(self, begin: int, end: int) -> Record:
        """What happened since `watch`, in a step that took from begin to end (perf_counter_ns)."""
        spans, self._executor.spans = self._executor.spans or [], None
        return recorded(self._executor, self._transport.rank, spans, begin, end)

    def clip_grad_norm_(self, max_norm: float, norm_type: float = 2.0) -> torch.Tensor:
        """Scale the gradients so that the norm of all of them, over all ranks, is at most max_norm; the norm before.
        Every rank must call this."""
        self._check_synced()
        return clip_grad_norm(self._store, self._transport, self._executor.place, max_norm, norm_type)

    def parameters(self) -> Iterator[nn.Parameter]:
        """This rank's shards, for an elementwise torch optimizer; an empty parameter where it holds none. Not all of
        their gradients come from autograd, so hooks on them may not be called."""
        shards = [parameter for _, parameter in self._store.parameters()]
        yield from shards or [self._idle]

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """This rank's shards by the model's own names."""
        yield from self._store.parameters()

    def gradients(self) -> dict[str, torch.Tensor]:
        """Whole gradients by name, on every rank; every rank must call this."""
        self._check_synced()
        return self._store.assemble(self._transport.exchange(self._store.owned(gradients=True)), {})

    def state_dict(self) -> dict[str, torch.Tensor]:
        """The whole model's state, on every rank; every rank must call this."""
        whole = self._whole_state()
        state: dict[str, torch.Tensor] = {}
        for name, tensor in state_dict_of(self._work.model).items():
            found = whole.get(self._graph.aliases.get(name, name))
            state[name] = tensor.detach().clone() if found is None else found
        return state

    def _whole_state(self) -> dict[str, torch.Tensor]:
        self._buffers.catch_up(self._transport)
        unread = {name: tensor for name, tensor in state_of(self._work.model).items() if not tensor.is_meta}
        whole = self._store.assemble(self._transport.exchange(self._store.owned(gradients=False)), unread)
        return whole | {name: counter.clone() for name, counter in self._store.counters.items()}

    def save(
        self,
        folder: str | Path,
        optimizer: torch.optim.Optimizer | None = None,
        *,
        step: int,
        keep: int = 2,
        wait: bool = True,
    ) -> None:
        """Write a checkpoint to a folder that all ranks share: weights, buffers, and the state of the optimizer and of
        dropout. Every rank must call this, and writes its shards. The checkpoint appears when all of it is on disk, and
        the newest `keep` stay. With `wait=False` a copy is written while training goes on; the next `save` or `saved`
        waits for it. Raises RankError on all ranks if one cannot write."""
        self._check_synced()
        self._buffers.catch_up(self._transport)
        self._saver.begin(Path(folder), optimizer, step, keep, copied=not wait)
        if wait:
            self._saver.finish()

    def saved(self) -> None:
        """Wait until the last checkpoint is on disk; every rank must call this. Raises RankError on all ranks if one
        could not write."""
        self._saver.finish()

    def save_dcp(self, folder: str | Path, optimizer: torch.optim.Optimizer | None = None, *, step: int = 0) -> None:
        """Write a folder that `torch.distributed.checkpoint.load` reads, in scripts with FSDP2, DDP or neither: the
        model, the optimizer's state and the step, under the keys model, optim and step. Every rank must call this, and
        writes its shards. Raises RankError on all ranks if one cannot write, or if the folder is not new."""
        from .checkpoints import save_dcp

        self._check_synced()
        self._buffers.catch_up(self._transport)
        save_dcp(Path(folder), self._store, self._transport, self._work.model, optimizer, step)

    def stoppable(self, grace: float = GRACE) -> AbstractContextManager[Stop]:
        """A context for a loop that saves before it ends: inside it, SIGTERM and Ctrl-C do not end the process. Call
        the Stop that it yields on every rank after each step. It returns true on all ranks once one has a signal, and
        then has a `reason` and an exit `status`. A rank that is still inside `grace` seconds later ends at once."""
        return stoppable(self._transport, grace)

    @cached_property
    def _saver(self) -> Saver:
        from .checkpoints import Saver  # slow to import

        return Saver(self._executor, self._transport, self._work.model)

    def load(
        self,
        folder: str | Path,
        optimizer: torch.optim.Optimizer | None = None,
        *,
        missing_ok: bool = False,
        convert: bool = False,
        last_good: bool = False,
    ) -> int:
        """Load the newest checkpoint of a folder, of any strategy and number of ranks, or a folder that
        torch.distributed.checkpoint wrote. Returns its step; with `missing_ok`, 0 if there is no checkpoint. With
        `convert` floating-point numbers may change their type. With `last_good` damaged checkpoints are renamed, rank 0
        warns of them, and the newest undamaged one is loaded. Raises RankError on all ranks, before anything changes,
        if the checkpoint is damaged or does not fit the model."""
        from . import checkpoints

        path, model = Path(folder), self._work.model
        self._saver.finish()
        is_there = checkpoints.is_dcp(path) or checkpoints.latest(path) is not None
        if missing_ok and not self._transport.exchange(is_there)[0]:
            return 0
        self._steps, damaged = checkpoints.load(
            path, self._executor, self._transport, model, optimizer, convert=convert, last_good=last_good
        )
        for sentence in damaged if self._transport.rank == 0 else ():
            warnings.warn(sentence, stacklevel=2)
        self.zero_grad()
        self._guarded.changes += 1
        return self._steps

    def load_weights(self, path: str | Path) -> None:
        """Take a whole model's weights from a plain file: safetensors, or a state dict that `torch.save` wrote."""
        from .checkpoints import read_weights

        self._take_state(agree(self._transport, lambda: read_weights(Path(path))), f"{path}")

    def load_state_dict(self, state: Mapping[str, torch.Tensor]) -> None:
        """Take a whole state, such as `state_dict` gives; each rank keeps its own part of it. Tied weights may be there
        under one name. Raises RankError on every rank, before anything changes, where names or shapes are not the
        model's."""
        self._take_state(state, "the state")

    def _take_state(self, state: Mapping[str, torch.Tensor], source: str) -> None:
        own, aliases = state_dict_of(self._work.model), self._graph.aliases
        given = {aliases.get(name, name): tensor for name, tensor in state.items()}
        state = {**{name: given[aliases.get(name, name)] for name in own if aliases.get(name, name) in given}, **state}
        agree(self._transport, lambda: check_state(own, state, aliases, source))
        kept = {self._graph.aliases.get(name, name): tensor for name, tensor in state.items()}
        with torch.no_grad():
            for name, tensor in own.items():  # for what no op reads
                if not tensor.is_meta:
                    tensor.copy_(state[name])
        self._store.load(kept)
