"""Hugging Face models, unmodified, from small configs: captured whole, and trained alike on any strategy."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

import soapstone as ss
from soapstone.rules import facts_of
from tests.support.models import ONE_AT_A_TIME, seeded
from tests.support.seeds import seeds
from tests.support.training import Record, assert_same, train_plain, train_threads

transformers = pytest.importorskip("transformers")
logging.getLogger("transformers").setLevel(logging.ERROR)

VOCAB = 40


def _tokens() -> dict[str, torch.Tensor]:
    return {"input_ids": torch.randint(0, VOCAB, (4, 6)), "labels": torch.randint(0, VOCAB, (4, 6))}


def gpt2() -> tuple[Any, dict[str, torch.Tensor]]:
    sizes = {"vocab_size": VOCAB, "n_positions": 8, "n_embd": 8, "n_layer": 2, "n_head": 2}
    config = transformers.GPT2Config(**sizes, bos_token_id=0, eos_token_id=1)
    return transformers.GPT2LMHeadModel(config), _tokens()


def llama() -> tuple[Any, dict[str, torch.Tensor]]:
    sizes = {"vocab_size": VOCAB, "hidden_size": 16, "intermediate_size": 12, "num_hidden_layers": 2}
    config = transformers.LlamaConfig(**sizes, num_attention_heads=4, num_key_value_heads=2)
    return transformers.LlamaForCausalLM(config), _tokens()


def bert() -> tuple[Any, dict[str, torch.Tensor]]:
    sizes = {"vocab_size": VOCAB, "hidden_size": 8, "intermediate_size": 12, "num_hidden_layers": 2}
    config = transformers.BertConfig(**sizes, num_attention_heads=2, max_position_embeddings=8)
    mask = torch.ones(4, 6, dtype=torch.int64)
    mask[1, 4:] = 0
    return transformers.BertForMaskedLM(config), {**_tokens(), "attention_mask": mask}


def vit() -> tuple[Any, dict[str, torch.Tensor]]:
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = transformers.ViTConfig(**sizes, image_size=16, patch_size=8, num_labels=5)
    images = {"pixel_values": torch.randn(4, 3, 16, 16), "labels": torch.randint(0, 5, (4,))}
    return transformers.ViTForImageClassification(config), images


def t5() -> tuple[Any, dict[str, torch.Tensor]]:
    sizes = {"vocab_size": VOCAB, "d_model": 8, "d_kv": 4, "d_ff": 12, "num_layers": 2, "num_heads": 2}
    config = transformers.T5Config(**sizes, decoder_start_token_id=0)
    return transformers.T5ForConditionalGeneration(config), _tokens()


SIZES = {
    "vocab_size": VOCAB, "hidden_size": 16, "intermediate_size": 12, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 8, "num_experts_per_tok": 2, "use_cache": False,
    "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 2,
}  # fmt: skip


def mixtral() -> tuple[Any, dict[str, torch.Tensor]]:
    return transformers.MixtralForCausalLM(transformers.MixtralConfig(**SIZES, num_local_experts=4)), _tokens()


def qwen2_moe() -> tuple[Any, dict[str, torch.Tensor]]:
    """With an expert that all tokens share."""
    config = transformers.Qwen2MoeConfig(
        **SIZES, num_experts=4, moe_intermediate_size=12, shared_expert_intermediate_size=20
    )
    return transformers.Qwen2MoeForCausalLM(config), _tokens()


def deepseek_v3() -> tuple[Any, dict[str, torch.Tensor]]:
    """Experts in groups, of which few are chosen from, and keys by way of few numbers."""
    sizes = {**SIZES, "num_key_value_heads": 4, "n_routed_experts": 4, "moe_intermediate_size": 12}
    ranks = {"q_lora_rank": 8, "kv_lora_rank": 8, "qk_rope_head_dim": 4, "qk_nope_head_dim": 4, "v_head_dim": 4}
    config = transformers.DeepseekV3Config(**sizes, **ranks, first_k_dense_replace=1, n_group=2, topk_group=1)
    return transformers.DeepseekV3ForCausalLM(config), _tokens()


def gpt_oss() -> tuple[Any, dict[str, torch.Tensor]]:
    """Experts with biases."""
    config = transformers.GptOssConfig(**SIZES, num_local_experts=4, head_dim=4)
    return transformers.GptOssForCausalLM(config), _tokens()


EXPERTS = (mixtral, qwen2_moe, deepseek_v3, gpt_oss)
MODELS: dict[str, Callable[[], tuple[Any, dict[str, torch.Tensor]]]] = {
    f.__name__: f for f in (gpt2, llama, bert, vit, t5, *EXPERTS)
}


def workload(name: str) -> ss.Workload:
    with seeded(3):
        model, batch = MODELS[name]()
    return ss.Workload(model.train(), (), kwargs=batch)


def doubled(name: str) -> ss.Workload:
    work = workload(name)
    kwargs = {k: x.double() if x.is_floating_point() else x for k, x in work.kwargs.items()}
    return replace(work, model=work.model.double(), kwargs=kwargs)


@pytest.fixture
def no_casts(monkeypatch: pytest.MonkeyPatch) -> None:
    """The models compute norms, rotations and losses in float32, whatever their weights are; here, in float64."""
    to, softmax = torch.Tensor.to, torch.nn.functional.softmax

    def raised(given: Any) -> Any:
        return torch.float64 if given is torch.float32 else given

    monkeypatch.setattr(torch.Tensor, "float", torch.Tensor.double)
    monkeypatch.setattr(torch.Tensor, "type", lambda x, dtype: to(x, raised(dtype)))
    monkeypatch.setattr(
        torch.Tensor, "to", lambda x, *a, **k: to(x, *map(raised, a), **{n: raised(v) for n, v in k.items()})
    )
    monkeypatch.setattr(
        torch.nn.functional, "softmax", lambda *a, **k: softmax(*a, **{n: raised(v) for n, v in k.items()})
    )


@cache
def captured(name: str) -> ss.OperatorGraph:
    with ONE_AT_A_TIME:
        return ss.capture(doubled(name))


@cache
def reference(name: str) -> Record:
    work = eager_experts(doubled(name))
    return train_plain(work, [work.batch] * 2)


def eager_experts(work: ss.Workload) -> ss.Workload:
    """With one expert after the other, since torch's product by groups takes no float64."""
    for module in work.model.modules():
        config: Any = getattr(module, "config", None)
        if config is not None:
            config._experts_implementation = "eager"
    return work


@pytest.mark.usefixtures("no_casts")
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("seed", seeds(1, 3))
def test_it_trains_like_one_device(name: str, seed: int) -> None:
    graph, topology = captured(name), ss.Topology.parse(f"cpu:1x{2 + seed}")
    data = seed == 0
    strategy = ss.baselines.data_parallel(graph, topology) if data else ss.baselines.random(graph, topology, seed=seed)
    for record in train_threads(lambda: doubled(name), graph, strategy, [doubled(name).batch] * 2):
        assert_same(record, reference(name))


@pytest.mark.parametrize("name", MODELS)
def test_products_have_the_flops_that_torch_counts(name: str) -> None:
    work = eager_experts(workload(name))
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:  # the CPU's own it does not count
        work.compute_loss(*work.batch)
    steps = [step for op in ss.capture(workload(name)).ops for step in op.steps]
    found = sum(step.flops for step in steps if facts_of(step.kind).family in ("dense", "conv", "attention"))
    assert found == pytest.approx(counter.get_total_flops(), rel=0.02)


@pytest.mark.parametrize("name", MODELS)
def test_nearly_all_flops_split_in_two_dims(name: str) -> None:
    graph = ss.capture(workload(name))
    assert graph.unruled == ()
    split = sum(op.flops for op in graph.ops if sum(dim.splittable for dim in op.dims) >= 2)
    assert split >= 0.99 * sum(op.flops for op in graph.ops)
