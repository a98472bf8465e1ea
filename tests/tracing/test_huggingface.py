"""Hugging Face models, unmodified, from small configs: captured whole, and trained alike on any strategy."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

import pytest

import soapstone as ss
from tests.support.counting import counted_flops, products, saved_by_eager
from tests.support.microbatches import microbatched
from tests.support.models import ONE_AT_A_TIME
from tests.support.seeds import cases, seeds
from tests.support.training import Record, assert_same, train_plain, train_threads

pytest.importorskip("transformers")
from tests.support import huggingface

pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")  # of DeBERTa's
REFUSED = {"wav2vec2": "labels.max()"}
MODELS = [name for name in huggingface.MODELS if name not in REFUSED]


@pytest.fixture
def in_float64() -> Iterator[None]:
    with huggingface.all_in_float64():
        yield


@cache
def captured(name: str) -> ss.OperatorGraph:
    with ONE_AT_A_TIME:
        return ss.capture(huggingface.doubled(name))


@cache
def reference(name: str) -> Record:
    work = huggingface.eager_experts(huggingface.doubled(name))
    return train_plain(work, [work.batch] * 2)


@pytest.mark.usefixtures("in_float64")
@pytest.mark.parametrize("name", cases(MODELS, long=set(MODELS) - {*huggingface.OFTEN}))
@pytest.mark.parametrize("seed", seeds(1, 4))
def test_it_trains_like_one_device(name: str, seed: int) -> None:
    graph, topology = captured(name), ss.Topology.parse(f"cpu:1x{2 + seed % 3}")
    data = seed == 1
    strategy = ss.baselines.data_parallel(graph, topology) if data else ss.baselines.random(graph, topology, seed=seed)
    batches = [huggingface.doubled(name).batch] * 2
    for record in train_threads(lambda: huggingface.doubled(name), graph, strategy, batches):
        assert_same(record, reference(name))


CUT = [name for name in MODELS if name != "clip"]  # whose loss compares the samples of a batch


def still(name: str) -> ss.Workload:
    return huggingface.still(huggingface.doubled(name))


@pytest.mark.usefixtures("in_float64")
@pytest.mark.parametrize("name", cases(CUT, long=set(CUT) - {"bert", "llama"}))
@pytest.mark.parametrize("seed", seeds(1, 2))
def test_microbatches_train_like_one_device(name: str, seed: int) -> None:
    graph, batches = ss.capture(still(name)), [still(name).batch] * 2
    strategy = microbatched(graph, ss.Topology.parse(f"cpu:1x{2 + seed}"), (2, 4)[seed], seed)
    wanted = train_plain(huggingface.eager_experts(still(name)), batches)
    for record in train_threads(lambda: still(name), graph, strategy, batches):
        assert_same(record, wanted)


@pytest.mark.parametrize("name", cases(MODELS, long=set(MODELS) - {*huggingface.OFTEN}))
def test_its_facts_are_those_of_eager_pytorch(name: str) -> None:
    """Flops of products, and bytes that stay for backward. Ours may be more: a concatenation is made anew for each of
    its readers. Or less: eager's einsum makes copies that are contiguous, and its attention keeps all scores where
    heads share keys by broadcasting."""
    work = huggingface.workload(name)
    graph = ss.capture(work)
    assert 0.9 <= graph.facts.saved_bytes / saved_by_eager(work) <= 1.25
    counted = counted_flops(huggingface.eager_experts(huggingface.workload(name)))
    assert products(graph) == pytest.approx(counted, rel=0.02)
    assert graph.unruled == ()
    assert graph.facts.split_share >= 0.97


@pytest.mark.long
@pytest.mark.usefixtures("in_float64")
@pytest.mark.parametrize("name", ["mixtral", "deepseek_v3"])
def test_experts_one_after_the_other_train_alike(name: str) -> None:
    """A loop over the experts that were hit."""

    def work() -> ss.Workload:
        return huggingface.eager_experts(huggingface.doubled(name))

    graph, topology = ss.capture(work()), ss.Topology.parse("cpu:1x3")
    assert graph.unruled == ()
    for record in train_threads(work, graph, ss.baselines.random(graph, topology, seed=1), [work().batch] * 2):
        assert_same(record, reference(name))


@pytest.mark.parametrize("name", REFUSED)
def test_others_are_refused_in_a_sentence_that_shows_the_line(name: str) -> None:
    with pytest.raises(ss.SoapstoneError, match="depends on numbers in a tensor") as error:
        ss.capture(huggingface.workload(name))
    assert REFUSED[name] in str(error.value)


def test_every_family_is_there() -> None:
    families = {entry.family for entry in huggingface.MODELS.values()}
    assert families == {"encoder", "decoder", "encoder-decoder", "vision", "audio", "experts", "state space"}
    assert len(huggingface.MODELS) == 30
