"""Damages checkpoints, then exports them and loads them on two ranks. A load that is refused must change nothing. Any
other load must restore every bit of the weights, and of the optimizer's state and settings."""

from __future__ import annotations

import random
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn

import soapstone as ss
from soapstone.runtime import Parallel, ThreadTransport
from soapstone.runtime.checkpoints import latest, whole_state

from .damage import BITS, NONE, STRUCTURE
from .tally import HARMLESS, REFUSED, SILENT, TRACEBACK, Tally

RANKS = 2
BITS_IN = 5  # of six damages, this many are single bits
UNTOUCHED = 50  # for this many damaged checkpoints, one more is left undamaged


class _Training:
    """A rank's training, to be loaded into again and again."""

    def __init__(
        self, work: ss.Workload, transport: ThreadTransport, graph: ss.OperatorGraph, strategy: ss.Strategy
    ) -> None:
        self.work = work
        self.parallel: Parallel = ss.parallelize(self.work, graph, strategy.topology, strategy, transport=transport)
        self.optimizer = torch.optim.AdamW(self.parallel.parameters(), lr=0.01)

    def step(self) -> None:
        self.parallel.step(*self.work.batch)
        self.optimizer.step()

    def tensors(self) -> Iterator[torch.Tensor]:
        for parameter in self.parallel.parameters():
            yield parameter.detach()
            kept = sorted(self.optimizer.state[parameter].items())  # a load has them in another order
            yield from (value for _, value in kept if isinstance(value, torch.Tensor))

    def snapshot(self) -> tuple[Any, ...]:
        settings = [{k: v for k, v in group.items() if k != "params"} for group in self.optimizer.param_groups]
        return [tensor.clone() for tensor in self.tensors()], settings

    @torch.no_grad()
    def change(self) -> None:
        """Change all values, so that a load which does nothing is noticed."""
        for tensor in self.tensors():
            tensor.add_(1)
        for group in self.optimizer.param_groups:
            group["lr"] = 0.5


def _work() -> ss.Workload:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 8), nn.Linear(8, 4))
    return ss.Workload(
        model, (torch.randn(4, 6),), loss=nn.functional.cross_entropy, targets=(torch.randint(0, 4, (4,)),)
    )


def fuzz(count: int, seed: int) -> Tally:
    """Damage a checkpoint `count` times, and read some undamaged ones as well."""
    tally, works, topology = Tally(), [_work() for _ in range(RANKS)], ss.Topology.parse(f"cpu:1x{RANKS}")
    graph = ss.capture(works[0])
    strategy = ss.baselines.fsdp(graph, topology)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)

        def run(rank: int, transport: ThreadTransport) -> None:
            training = _Training(works[rank], transport, graph, strategy)
            for part in ("other", "good"):  # the checkpoint after two steps is the one to be damaged
                training.step()
                training.parallel.save(folder / part, training.optimizer, step=1 if part == "other" else 2)
            _rounds(training, transport, folder, tally, count, seed)

        ss.run_threads(RANKS, run, timeout=600)
    return tally


def _rounds(training: _Training, transport: ThreadTransport, folder: Path, tally: Tally, count: int, seed: int) -> None:
    rng, first = random.Random(seed), transport.rank == 0
    good, other = (latest(folder / part) for part in ("good", "other"))
    assert good is not None
    assert other is not None
    whole, wanted, own = whole_state(good), training.snapshot(), folder / "damaged" / good.name
    training.change()
    for number in range(count + count // UNTOUCHED):
        kinds = NONE if number >= count else BITS if rng.randrange(6) < BITS_IN else STRUCTURE
        kind = rng.choice([*kinds])
        what = ""
        if first:
            shutil.rmtree(own.parent, ignore_errors=True)
            shutil.copytree(good, own)
            what = kinds[kind](own, other, rng)
        transport.exchange(None)
        before = training.snapshot()
        outcome, said = _loaded(training, own, before, wanted)
        outcomes = [row for row in transport.exchange((outcome, said)) if row[0] != REFUSED] or [(REFUSED, "")]
        if first:
            exported, why = _exported(own, whole)
            outcomes.append((exported, why))
            worst, said = max(outcomes, key=lambda row: (HARMLESS, REFUSED, SILENT, TRACEBACK).index(row[0]))
            tally.add(kind, worst, f"{what}: {said}")
        rng = random.Random(transport.exchange(rng.getrandbits(64))[0])
        if outcome != REFUSED:
            training.change()


def _loaded(training: _Training, path: Path, before: Any, wanted: Any) -> tuple[str, str]:
    try:
        step = training.parallel.load(path.parent, training.optimizer)
    except ss.SoapstoneError as error:
        if not _same(training.snapshot(), before):
            return SILENT, f"changed by a load that was refused: {error}"
        return (REFUSED if str(path.parent) in str(error) else TRACEBACK), str(
            error
        )  # an error of others names no path
    except Exception as error:
        return TRACEBACK, repr(error)
    return (HARMLESS, "") if step == 2 and _same(training.snapshot(), wanted) else (SILENT, "loaded")


def _exported(path: Path, whole: dict[str, torch.Tensor]) -> tuple[str, str]:
    try:
        found = whole_state(path.parent)
    except ss.SoapstoneError as error:
        return REFUSED, str(error)
    except Exception as error:
        return TRACEBACK, repr(error)
    is_same = found.keys() == whole.keys() and all(_equal(found[name], whole[name]) for name in whole)
    return (HARMLESS, "") if is_same else (SILENT, "exported")


def _same(one: Any, other: Any) -> bool:
    (tensors, settings), (others, other_settings) = one, other
    return len(tensors) == len(others) and all(map(_equal, tensors, others)) and repr(settings) == repr(other_settings)


def _equal(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.dtype == other.dtype and torch.equal(one, other)
