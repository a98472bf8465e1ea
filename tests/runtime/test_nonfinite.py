"""A loss that is not finite ends a run before it reaches the weights, or its step is left out."""

from __future__ import annotations

import copy

import pytest
import torch

import soapstone as ss
from soapstone.baselines import data_parallel, fsdp
from soapstone.runtime import ThreadTransport
from tests.support.models import ALL
from tests.support.training import SEED, Batches, Record, assert_same, optimizer_of

RANKS = 2


def batches() -> Batches:
    """The second of three is bad."""
    first, (inputs, targets), last = ALL["cnn"].batches(3)
    return [first, (inputs / 0, targets), last]


def on_ranks(on_nan: str, strategy: ss.Strategy, given: Batches) -> list[Record]:
    works = [ALL["cnn"].workload() for _ in range(RANKS)]
    torch.manual_seed(SEED)

    def act(rank: int, transport: ThreadTransport) -> Record:
        graph, options = strategy.graph, {"transport": transport, "dropout": "replay", "on_nan": on_nan}
        parallel = ss.parallelize(works[rank], graph, strategy.topology, strategy, **options)  # type: ignore[arg-type]
        optimizer, losses = optimizer_of(parallel.parameters()), []
        for batch in given:
            losses.append(parallel.step(*batch))
            optimizer.step()
        return Record(losses, [], parallel.state_dict())

    return ss.run_threads(RANKS, act, timeout=60)


def plain(given: Batches) -> Record:
    """Plain PyTorch, which forgets a step whose loss is not finite."""
    work, losses = ALL["cnn"].workload(), []
    optimizer = optimizer_of(work.model.parameters())
    torch.manual_seed(SEED)
    for batch in given:
        before = copy.deepcopy(work.model.state_dict())
        optimizer.zero_grad()
        loss = work.compute_loss(*batch)
        loss.backward()  # type: ignore[no-untyped-call]
        losses.append(loss.detach())
        if loss.isfinite():
            optimizer.step()
        else:
            work.model.load_state_dict(before)
    return Record(losses, [], dict(work.model.state_dict()))


@pytest.fixture(params=[data_parallel, fsdp])
def strategy(request: pytest.FixtureRequest) -> ss.Strategy:
    found: ss.Strategy = request.param(ss.capture(ALL["cnn"].workload()), ss.Topology.parse(f"cpu:1x{RANKS}"))
    return found


def test_a_step_is_skipped_whole(strategy: ss.Strategy) -> None:
    wanted = plain(batches())
    for found in on_ranks("skip", strategy, batches()):
        assert not found.losses[1].isfinite()
        kept = [Record([r.losses[0], r.losses[2]], [], r.state) for r in (found, wanted)]
        assert_same(*kept)


def test_skipping_has_an_end(strategy: ss.Strategy) -> None:
    good, bad, _ = batches()
    with pytest.raises(ss.SoapstoneError, match="the loss of step 13 is not finite, nor are those of 10 steps before"):
        on_ranks("skip", strategy, [good, bad, good, *[bad] * 9, good, *[bad] * 11][-13:])
    on_ranks("skip", strategy, [bad] * 10)


def test_a_run_ends_with_the_step_in_its_sentence(strategy: ss.Strategy) -> None:
    with pytest.raises(ss.SoapstoneError, match=r"the loss of step 2 is not finite: all weights are; lower the"):
        on_ranks("stop", strategy, batches())


def test_weights_that_are_not_finite_are_named(strategy: ss.Strategy, monkeypatch: pytest.MonkeyPatch) -> None:
    made = ALL["cnn"].workload()
    name, weight = next(iter(made.model.named_parameters()))
    with torch.no_grad():
        weight.fill_(torch.nan)
    monkeypatch.setattr(type(ALL["cnn"]), "workload", lambda _: copy.deepcopy(made))
    with pytest.raises(ss.SoapstoneError, match=f"the loss of step 1 is not finite: '{name}' is not, on rank 0"):
        on_ranks("stop", strategy, batches())
