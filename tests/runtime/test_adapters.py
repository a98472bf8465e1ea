"""LoRA of `peft` on a model of `transformers`: frozen weights and adapters train as in plain PyTorch."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import soapstone as ss
from soapstone.runtime import ThreadTransport
from tests.support.seeds import cases
from tests.support.training import assert_same, optimizer_of, train_plain, train_threads

pytest.importorskip("transformers")
pytest.importorskip("peft")
import peft

from tests.support import huggingface


def adapted() -> ss.Workload:
    work = huggingface.still(huggingface.doubled("llama"))
    config = peft.LoraConfig(r=4, target_modules=["q_proj", "v_proj", "gate_proj"])
    torch.manual_seed(1)
    model = peft.get_peft_model(work.model, config).double()
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter)  # zeros give the other factor no gradient
    return replace(work, model=model.train())


@pytest.mark.parametrize("baseline", cases(["data", "fsdp", "megatron", "dp1-pp2-m2"], long=["data", "megatron"]))
def test_adapters_train_as_in_plain_pytorch(baseline: str) -> None:
    with huggingface.all_in_float64():
        work, plain = adapted(), adapted()
        graph, topology, batches = ss.capture(work), ss.Topology.parse("cpu:1x2"), [work.batch] * 2
        strategy = ss.baselines.baseline(baseline, graph, topology)
        wanted = train_plain(plain, batches)
        for found in train_threads(adapted, graph, strategy, batches):
            assert_same(found, wanted)


def test_frozen_weights_have_no_gradients_and_no_states() -> None:
    with huggingface.all_in_float64():
        work = adapted()
        graph = ss.capture(work)
    topology = ss.Topology.parse("cpu:1x1")
    training = ss.Training(optimizer="adamw")
    memory = ss.simulate(graph, topology, ss.baselines.data_parallel(graph, topology), training=training).memory
    trained = sum(p.numel() * p.element_size() for p in work.model.parameters() if p.requires_grad)
    assert (memory.gradients[0], memory.states[0]) == (trained, 2 * trained)


def test_adapters_are_saved_alone(tmp_path: Path) -> None:
    with huggingface.all_in_float64():
        works = [adapted() for _ in range(2)]
        graph, topology = ss.capture(works[0]), ss.Topology.parse("cpu:1x2")
        strategy = ss.baselines.baseline("fsdp", graph, topology)

        def run(rank: int, transport: ThreadTransport) -> None:
            parallel = ss.parallelize(works[rank], graph, topology, strategy, transport=transport)
            optimizer = optimizer_of(parallel.parameters())
            parallel.step(*works[rank].batch)
            optimizer.step()
            works[rank].model.load_state_dict(parallel.state_dict())

        ss.run_threads(2, run)
        model: Any = works[0].model
        model.save_pretrained(str(tmp_path))
        assert {path.name for path in tmp_path.glob("*.safetensors")} == {"adapter_model.safetensors"}
        again: Any = adapted().model
        again.load_adapter(str(tmp_path), "trained")
        again.set_adapter("trained")
        batch = works[0].batch
        found = replace(works[0], model=again.double()).compute_loss(*batch)
        assert torch.allclose(found, works[0].compute_loss(*batch))
