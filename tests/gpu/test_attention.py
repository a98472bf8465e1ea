"""Attention on slices that begin anywhere: CUDA's kernels read 16 bytes at a time."""

from dataclasses import replace

import pytest
import torch

import soapstone as ss
from soapstone.runtime.checking import check
from soapstone.runtime.transports import alone
from soapstone.strategy import Configuration


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(("made", "read", "out"), [(3, 4, 1), (4, 3, 1), (5, 3, 7), (1, 3, 5)])
def test_parts_of_attention_need_not_begin_at_even_places(dtype: str, made: int, read: int, out: int) -> None:
    place = torch.device("cuda")
    torch.manual_seed(0)
    work = ss.zoo.load("gpt2", batch=2, length=64, layers=1, width=128, heads=2, vocab=64)
    work = replace(work, model=work.model.to(getattr(torch, dtype))).on(place)
    graph = ss.capture(work)
    topology = ss.Topology.parse("h200:1x1")
    whole = ss.baselines.data_parallel(graph, topology)
    changes = {
        "blocks.0.attention.value": Configuration({"dv": made}, (0,) * made),
        "blocks.0.attention": Configuration({"dv": read}, (0,) * read),
        "blocks.0.attention.out": Configuration({"in": out}, (0,) * out),
    }
    strategy = ss.Strategy(graph, topology, {**{op.name: whole[op.name] for op in graph.ops}, **changes})
    if dtype == "float32":
        check(work, graph, strategy, transport=alone(), place=place, seed=0)
    else:
        parallel = ss.parallelize(work, graph, topology, strategy, transport=alone())
        assert torch.isfinite(parallel.step(*work.batch))
    torch.cuda.synchronize()
