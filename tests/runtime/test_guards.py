"""Habits from loops that were written for one device: they work as there, or raise one clear error."""

from __future__ import annotations

import copy
import gc
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn import utils
from torch.nn.utils import clip_grad_norm_, get_total_norm
from torch.nn.utils import clip_grad_value_ as clip_value  # names that were imported before anything is parallel
from torch.optim import swa_utils

import soapstone as ss
from soapstone.runtime import Parallel, ThreadTransport
from tests.support.models import ALL, captured
from tests.support.training import optimizer_of

Act = Callable[[Parallel, ss.Workload], Any]
CUT = ("model", "fsdp", "zero1")


def on_ranks(act: Act, baseline: str = "data", ranks: int = 2) -> list[Any]:
    """What each rank finds after one step of the MLP."""
    topology = ss.Topology.parse(f"cpu:1x{ranks}")
    strategy = ss.baselines.baseline(baseline, captured("mlp"), topology)
    works = [ALL["mlp"].workload() for _ in range(ranks)]

    def run(rank: int, transport: ThreadTransport) -> Any:
        parallel = ss.parallelize(works[rank], captured("mlp"), topology, strategy, transport=transport)
        parallel.step(*works[rank].batch)
        return act(parallel, works[rank])

    return ss.run_threads(ranks, run, timeout=60)


def refused(act: Act, message: str, baseline: str = "data") -> None:
    def raises(parallel: Parallel, work: ss.Workload) -> None:
        with pytest.raises(ss.SoapstoneError, match=message):
            act(parallel, work)

    on_ranks(raises, baseline)


def plain_gradients() -> nn.Module:
    """The MLP after backward on one device."""
    work = ALL["mlp"].workload()
    work.compute_loss(*work.batch).backward()  # type: ignore[no-untyped-call]
    return work.model


# Optimizers of the plain model


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.AdamW, torch.optim.Adafactor])
def test_an_optimizer_of_the_plain_model_is_refused(kind: Any) -> None:
    def act(_: Parallel, work: ss.Workload) -> None:
        kind(work.model.parameters(), lr=0.1).step()

    refused(act, f"{kind.__name__} has the plain model's parameters", "fsdp")


def test_an_optimizer_that_stepped_before_is_refused_too() -> None:
    work = ALL["mlp"].workload()
    optimizer = optimizer_of(work.model.parameters())
    work.compute_loss(*work.batch).backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    optimizer.zero_grad()
    topology = ss.Topology.parse("cpu:1x1")
    strategy = ss.baselines.data_parallel(captured("mlp"), topology)

    def run(rank: int, transport: ThreadTransport) -> None:
        parallel = ss.parallelize(work, captured("mlp"), topology, strategy, transport=transport, in_place=False)
        optimizer.step()  # nothing to do yet
        parallel.step(*work.batch)
        with pytest.raises(ss.SoapstoneError, match="plain model's parameters"):
            optimizer.step()

    ss.run_threads(1, run, timeout=60)


def test_the_plain_model_may_train_by_itself_and_others_beside_it() -> None:
    def act(parallel: Parallel, work: ss.Workload) -> None:
        work.model.load_state_dict(parallel.state_dict())
        other = nn.Linear(2, 2)
        for model, loss in ((work.model, work.compute_loss(*work.batch)), (other, other(torch.ones(1, 2)).sum())):
            optimizer = optimizer_of(model.parameters())
            before = [parameter.clone() for parameter in model.parameters()]
            loss.backward()
            clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            assert not all(map(torch.equal, before, model.parameters()))
        optimizer_of(nn.Linear(2, 2).parameters()).step()  # which has no gradients, and nothing to do with it
        optimizer_of(parallel.parameters()).step()

    on_ranks(act, "fsdp")


def test_a_plain_model_may_do_as_it_likes_when_nothing_is_parallel_any_more() -> None:
    works: list[ss.Workload] = []
    on_ranks(lambda _, work: works.append(work))
    gc.collect()
    optimizer_of(works[0].model.parameters()).step()


def test_an_optimizer_does_not_step_on_gradients_that_are_not_summed() -> None:
    def act(parallel: Parallel, work: ss.Workload) -> None:
        optimizer = optimizer_of(parallel.parameters())
        optimizer.step()
        parallel.step(*work.batch, sync=False)
        with pytest.raises(
            ss.SoapstoneError, match=r"sync=False, so gradients are not summed yet; call optimizer.step"
        ):
            optimizer.step()
        parallel.step(*work.batch)
        optimizer.step()

    on_ranks(act)


@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize("split", ["sample", "channel"])
def test_samples_of_each_ranks_own_are_refused_where_ranks_read_the_same(split: str, whole: bool) -> None:
    """A DistributedSampler does this. Under data parallelism its samples are right, as slices."""
    topology = ss.Topology.parse("cpu:1x2")
    strategy = ss.baselines.data_parallel(captured("mlp"), topology)
    strategy = strategy.replace({"first": ss.Configuration({split: 2}, (0, 1))})
    batches = ALL["mlp"].batches(2)

    def run(rank: int, transport: ThreadTransport) -> None:
        work = ALL["mlp"].workload()
        parallel = ss.parallelize(work, captured("mlp"), topology, strategy, transport=transport)
        batch = [x if whole else x[own] for x, own in zip(batches[rank], parallel.slices, strict=True)]
        if split == "sample" and not whole:
            parallel.step(*batch)
            return
        with pytest.raises(ss.SoapstoneError, match=r"ranks 0 and 1 pass different batches.*DistributedSampler"):
            parallel.step(*batch)

    ss.run_threads(2, run, timeout=60)


def test_a_model_that_is_split_already_is_refused(tmp_path: Path) -> None:
    x = torch.ones(2, 4)
    wrap: Any
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/ranks", rank=0, world_size=1)
    try:
        for wrap, message in (
            (nn.parallel.DistributedDataParallel, "split by DistributedDataParallel already; pass the plain one"),
            (lambda model: nn.Sequential(nn.parallel.DistributedDataParallel(model)), "split by DistributedData"),
            (nn.DataParallel, "split by DataParallel already"),
            (fully_shard, "split by FSDPModule already; pass the plain one, before fully_shard"),
        ):
            with pytest.raises(ss.SoapstoneError, match=message):
                ss.capture(wrap(nn.Linear(4, 4)), (x,), loss=torch.sum)
    finally:
        dist.destroy_process_group()


@pytest.mark.filterwarnings("ignore:.*script_method:DeprecationWarning")  # torch.compile's own
def test_a_compiled_model_is_captured_as_the_plain_one() -> None:
    """Its segments are compiled by `parallelize(..., compile=True)`."""
    model, x = nn.Linear(4, 4), torch.ones(2, 4)
    both: tuple[Any, Any] = model, torch.compile(model)
    plain, compiled = (ss.capture(each, (x,), loss=torch.sum) for each in both)
    assert [op.kind for op in compiled.ops] == [op.kind for op in plain.ops]


# torch.nn.utils


@pytest.mark.parametrize("baseline", CUT)
def test_norms_of_one_ranks_gradients_are_refused(baseline: str) -> None:
    message = r"norm is that of this rank's gradients alone, but '.*' is .*; use parallel.clip_grad_norm_"
    for act in (
        lambda parallel, _: clip_grad_norm_(parallel.parameters(), 1.0),
        lambda parallel, _: utils.clip_grad_norm_(list(parallel.parameters()), max_norm=1.0),
        lambda parallel, _: utils.clip_grad_norm_(
            parameters=[p for group in optimizer_of(parallel.parameters()).param_groups for p in group["params"]],
            max_norm=1.0,
        ),
        lambda parallel, _: get_total_norm([p.grad for p in parallel.parameters() if p.grad is not None]),
        lambda parallel, _: utils.get_total_norm(p.grad for p in parallel.parameters() if p.grad is not None),
    ):
        refused(act, message, baseline)


def test_norms_before_a_sync_are_refused() -> None:
    def act(parallel: Parallel, work: ss.Workload) -> None:
        parallel.step(*work.batch, sync=False)
        clip_grad_norm_(parallel.parameters(), 1.0)

    refused(act, "gradients are not summed yet; use parallel.clip_grad_norm_")


def test_clipping_the_plain_model_is_refused() -> None:
    for act in (
        lambda _, work: clip_grad_norm_(work.model.parameters(), 1.0),
        lambda _, work: clip_value(work.model.parameters(), 1.0),
    ):
        refused(act, "the plain model has no gradients to clip", "fsdp")


def test_whole_gradients_are_clipped_as_by_torch() -> None:
    model = plain_gradients()
    wanted = clip_grad_norm_(model.parameters(), 1e-3)
    for found, gradients in on_ranks(
        lambda parallel, _: (clip_grad_norm_(parallel.parameters(), 1e-3), parallel.gradients())
    ):
        torch.testing.assert_close(found, wanted)
        for name, parameter in model.named_parameters():
            torch.testing.assert_close(gradients[name], parameter.grad)


@pytest.mark.parametrize("baseline", ["data", *CUT])
def test_values_are_clipped_as_by_torch(baseline: str) -> None:
    model = plain_gradients()
    clip_value(model.parameters(), 1e-3)

    def act(parallel: Parallel, _: ss.Workload) -> dict[str, torch.Tensor]:
        clip_value(parallel.parameters(), 1e-3)
        return parallel.gradients()

    for gradients in on_ranks(act, baseline):
        for name, parameter in model.named_parameters():
            torch.testing.assert_close(gradients[name], parameter.grad)


@pytest.mark.parametrize("baseline", CUT)
def test_gradients_are_clipped_by_a_norm_that_all_ranks_know(baseline: str) -> None:
    model = plain_gradients()
    norm = clip_grad_norm_(model.parameters(), 1e-3)

    def act(parallel: Parallel, _: ss.Workload) -> dict[str, torch.Tensor]:
        utils.clip_grads_with_norm_(parallel.parameters(), 1e-3, parallel.clip_grad_norm_(1e9))
        torch.testing.assert_close(
            parallel.clip_grad_norm_(1e9), torch.tensor(1e-3, dtype=norm.dtype), rtol=1e-2, atol=0
        )
        return parallel.gradients()

    for gradients in on_ranks(act, baseline):
        for name, parameter in model.named_parameters():
            torch.testing.assert_close(gradients[name], parameter.grad)


def test_a_vector_of_one_ranks_parameters_is_refused() -> None:
    refused(lambda parallel, _: utils.parameters_to_vector(parallel.parameters()), "not the model's", "fsdp")
    refused(lambda parallel, _: utils.vector_to_parameters(torch.ones(999), parallel.parameters()), "not the", "model")
    for found in on_ranks(lambda parallel, _: utils.parameters_to_vector(parallel.parameters())):
        wanted = utils.parameters_to_vector(ALL["mlp"].workload().model.parameters())
        torch.testing.assert_close(found.sum(), wanted.sum())  # in the order of our own


# Scalers, averages, copies


@pytest.mark.parametrize("act", ["step", "unscale_"])
def test_a_gradient_scaler_is_refused(act: str) -> None:
    def scaled(parallel: Parallel, work: ss.Workload) -> None:
        scaler, optimizer = torch.amp.GradScaler("cpu"), optimizer_of(parallel.parameters())
        scaler.scale(parallel.step(*work.batch))
        getattr(scaler, act)(optimizer)

    refused(scaled, "a GradScaler divides gradients by its scale")


def test_a_gradient_scaler_that_is_off_does_nothing() -> None:
    def act(parallel: Parallel, _: ss.Workload) -> None:
        torch.amp.GradScaler("cpu", enabled=False).step(optimizer_of(parallel.parameters()))

    on_ranks(act)


def test_averages_of_a_plain_model_that_nobody_loaded_are_refused() -> None:
    def act(parallel: Parallel, work: ss.Workload) -> None:
        refusal = r"not have the trained weights.*load_state_dict\(parallel.state_dict"
        with pytest.raises(ss.SoapstoneError, match=refusal):
            swa_utils.AveragedModel(work.model)
        work.model.load_state_dict(parallel.state_dict())
        average = swa_utils.AveragedModel(work.model)
        average.update_parameters(work.model)
        average.update_parameters(work.model)  # no step has come between
        parallel.step(*work.batch)
        for averaged in (average.update_parameters, lambda model: swa_utils.update_bn([], model)):
            with pytest.raises(ss.SoapstoneError, match=refusal):
                averaged(work.model)
        average.update_parameters(nn.Linear(2, 2))  # of whatever shape: not ours

    with pytest.raises(RuntimeError, match="size"):
        on_ranks(act, "fsdp")


def test_averages_of_a_model_that_trains_in_place_are_those_of_its_weights() -> None:
    def act(parallel: Parallel, work: ss.Workload) -> None:
        average = swa_utils.AveragedModel(work.model)
        optimizer_of(parallel.parameters()).step()
        average.update_parameters(work.model)
        assert all(map(torch.equal, average.module.parameters(), work.model.parameters()))

    on_ranks(act)


@pytest.mark.parametrize("baseline", ["data", *CUT])
def test_averages_of_weights_are_those_of_one_device(baseline: str) -> None:
    batches = ALL["mlp"].batches(3)
    work = ALL["mlp"].workload()
    average = swa_utils.AveragedModel(work.model, multi_avg_fn=swa_utils.get_ema_multi_avg_fn(0.5))  # type: ignore[no-untyped-call]
    optimizer = optimizer_of(work.model.parameters())
    for batch in batches:
        optimizer.zero_grad()
        work.compute_loss(*batch).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        average.update_parameters(work.model)
    with torch.no_grad():
        wanted = average(batches[0][0])

    def act(parallel: Parallel, _: ss.Workload) -> torch.Tensor:
        own: list[torch.Tensor] = list(parallel.parameters())
        averages = [parameter.detach().clone() for parameter in own]
        optimizer = optimizer_of(own)
        for number, batch in enumerate(batches):
            parallel.step(*batch)
            optimizer.step()
            if number == 0:
                torch._foreach_copy_(averages, own)
            else:
                torch._foreach_lerp_(averages, own, 0.5)
        with torch.no_grad():
            torch._foreach_copy_(own, averages)
        return parallel.evaluate(batches[0][0])

    for found in on_ranks(act, baseline):
        torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize(
    ("act", "message"),
    [
        (lambda parallel, _: copy.deepcopy(parallel), "cannot be copied"),
        (lambda parallel, _: swa_utils.AveragedModel(parallel), "cannot be copied"),
        (lambda parallel, _: torch.save(parallel, io.BytesIO()), "cannot be pickled; call parallel.save"),
    ],
)
def test_copies_of_a_parallel_are_refused(act: Act, message: str) -> None:
    refused(act, message)


# Habits


@pytest.mark.parametrize(
    ("act", "message"),
    [
        (lambda parallel, work: parallel.step(*work.batch).backward(), "has run backward already"),
        (lambda parallel, work: parallel(*work.inputs), r"not called; call parallel.step\(inputs, targets\) to train"),
        (lambda parallel, _: parallel.train(), "leave train"),
        (lambda parallel, _: parallel.eval(), r"parallel.evaluate\(inputs\) is always in eval mode"),
        (lambda parallel, _: parallel.module, r"call model.load_state_dict\(parallel.state_dict\(\)\)"),
        (lambda parallel, _: parallel.no_sync(), "sync=False"),
        (lambda parallel, _: parallel.to("cpu"), "give parallelize"),
        (lambda parallel, _: parallel.modules(), "not an nn.Module"),
        (lambda parallel, _: swa_utils.update_bn([], parallel), "not an nn.Module"),
    ],
)
def test_a_habit_is_answered_in_a_sentence(act: Act, message: str) -> None:
    refused(act, message)


def test_a_parallel_has_only_what_it_has() -> None:
    def act(parallel: Parallel, _: ss.Workload) -> None:
        assert not hasattr(parallel, "module")
        assert not hasattr(parallel, "train")
        with pytest.raises(AttributeError, match="no attribute 'stepp'"):
            parallel.stepp()

    on_ranks(act)


def test_zero_grad_drops_what_was_added_up() -> None:
    wanted = plain_gradients()

    def act(parallel: Parallel, work: ss.Workload) -> dict[str, torch.Tensor]:
        parallel.step(*work.batch, sync=False)
        parallel.zero_grad()
        parallel.step(*work.batch)
        return parallel.gradients()

    for gradients in on_ranks(act, "fsdp"):
        for name, parameter in wanted.named_parameters():
            torch.testing.assert_close(gradients[name], parameter.grad)


def test_a_loss_is_a_plain_number() -> None:
    def act(parallel: Parallel, work: ss.Workload) -> None:
        loss = parallel.step(*work.batch)
        file = io.BytesIO()
        torch.save({"loss": loss}, file)
        file.seek(0)
        saved = torch.load(file, weights_only=True)["loss"]
        for each in (saved, copy.deepcopy(loss), loss + 0, loss.detach(), torch.stack([loss])[0]):
            assert type(each) is torch.Tensor
            assert each.item() == loss.item() == float(loss.numpy())
        assert not loss.requires_grad
        assert f"{loss:.3f} {loss}" == f"{loss.item():.3f} {loss + 0}"

    on_ranks(act)
