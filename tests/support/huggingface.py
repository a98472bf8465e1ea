"""Thirty models of `transformers`, unmodified, from configs so small that each trains in a moment.

A config may switch off what is left out at random (layers, whole paths) and what numpy draws, as it would have to for
any run that can be repeated."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any
from unittest.mock import patch

import torch

import soapstone as ss

from .models import seeded

logging.getLogger("transformers").setLevel(logging.ERROR)

SAMPLES, LENGTH, VOCAB, CLASSES = 4, 6, 40, 5
Batch = dict[str, torch.Tensor]

WORDS = {"vocab_size": VOCAB, "max_position_embeddings": 8, "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 2}
LAYERS = {"hidden_size": 16, "intermediate_size": 12, "num_hidden_layers": 2, "num_attention_heads": 4}
SHARED_KEYS = {"num_key_value_heads": 2, "head_dim": 4, "use_cache": False}
IMAGES = {"image_size": 16, "patch_size": 8, "num_labels": CLASSES}
DECODER = WORDS | LAYERS | SHARED_KEYS
EXPERTS = DECODER | {"num_experts_per_tok": 2, "moe_intermediate_size": 12}
TWO_SIDES = {
    "d_model": 8, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 2,
    "decoder_attention_heads": 2, "encoder_ffn_dim": 12, "decoder_ffn_dim": 12, "decoder_start_token_id": 0,
}  # fmt: skip
LATENT = {"q_lora_rank": 8, "kv_lora_rank": 8, "qk_rope_head_dim": 4, "qk_nope_head_dim": 4, "v_head_dim": 4}


def tokens() -> Batch:
    return {
        "input_ids": torch.randint(0, VOCAB, (SAMPLES, LENGTH)),
        "labels": torch.randint(3, VOCAB, (SAMPLES, LENGTH)),
    }


def padded() -> Batch:
    mask = torch.ones(SAMPLES, LENGTH, dtype=torch.int64)
    mask[1, 4:] = 0
    return {**tokens(), "attention_mask": mask}


def images() -> Batch:
    return {"pixel_values": torch.randn(SAMPLES, 3, 16, 16), "labels": torch.randint(0, CLASSES, (SAMPLES,))}


def large_images() -> Batch:
    return images() | {"pixel_values": torch.randn(SAMPLES, 3, 32, 32)}


def masks() -> Batch:
    return {"pixel_values": torch.randn(SAMPLES, 3, 32, 32), "labels": torch.randint(0, CLASSES, (SAMPLES, 32, 32))}


def captions() -> Batch:
    words = torch.randint(0, VOCAB - 1, (SAMPLES, LENGTH))
    words[:, -1] = 1  # where a text ends
    return {"input_ids": words, "pixel_values": torch.randn(SAMPLES, 3, 16, 16)}


def speech() -> Batch:
    return {"input_features": torch.randn(SAMPLES, 8, 16), "labels": torch.randint(3, VOCAB, (SAMPLES, LENGTH))}


def waves() -> Batch:
    return {"input_values": torch.randn(SAMPLES, 400), "labels": torch.randint(3, VOCAB, (SAMPLES, 3))}


def spectra() -> Batch:
    return {"input_values": torch.randn(SAMPLES, 24, 16), "labels": torch.randint(0, CLASSES, (SAMPLES,))}


@dataclass(frozen=True)
class Entry:
    """A model class, its config and what it trains on."""

    family: str
    model: str
    config: dict[str, Any] = field(default_factory=dict)
    batch: Callable[[], Batch] = tokens
    kwargs: dict[str, Any] = field(default_factory=dict)  # of its forward, besides the batch


MODELS = {
    "bert": Entry("encoder", "BertForMaskedLM", WORDS | LAYERS, padded),
    "roberta": Entry("encoder", "RobertaForMaskedLM", WORDS | LAYERS | {"max_position_embeddings": 12}, padded),
    "distilbert": Entry(
        "encoder",
        "DistilBertForMaskedLM",
        WORDS | {"dim": 16, "hidden_dim": 12, "n_layers": 2, "n_heads": 4},
        padded,
    ),
    "deberta_v2": Entry(
        "encoder",
        "DebertaV2ForMaskedLM",
        WORDS | LAYERS | {"relative_attention": True, "pos_att_type": ["p2c", "c2p"]},
        padded,
    ),
    "modernbert": Entry("encoder", "ModernBertForMaskedLM", WORDS | LAYERS, padded),
    "gpt2": Entry("decoder", "GPT2LMHeadModel", WORDS | {"n_positions": 8, "n_embd": 8, "n_layer": 2, "n_head": 2}),
    "llama": Entry("decoder", "LlamaForCausalLM", DECODER),
    "qwen3": Entry("decoder", "Qwen3ForCausalLM", DECODER),
    "gemma2": Entry("decoder", "Gemma2ForCausalLM", DECODER | {"sliding_window": 4}),
    "phi3": Entry("decoder", "Phi3ForCausalLM", WORDS | LAYERS | {"num_key_value_heads": 2, "use_cache": False}),
    "opt": Entry("decoder", "OPTForCausalLM", WORDS | LAYERS | {"ffn_dim": 12, "word_embed_proj_dim": 16}),
    "falcon": Entry("decoder", "FalconForCausalLM", WORDS | LAYERS),
    "gpt_neox": Entry("decoder", "GPTNeoXForCausalLM", WORDS | LAYERS),
    "t5": Entry(
        "encoder-decoder",
        "T5ForConditionalGeneration",
        {"vocab_size": VOCAB, "d_model": 8, "d_kv": 4, "d_ff": 12, "num_layers": 2, "num_heads": 2}
        | {"decoder_start_token_id": 0},
    ),
    "bart": Entry("encoder-decoder", "BartForConditionalGeneration", WORDS | TWO_SIDES, padded),
    "vit": Entry("vision", "ViTForImageClassification", LAYERS | IMAGES, images),
    "swin": Entry(
        "vision",
        "SwinForImageClassification",
        {"image_size": 32, "patch_size": 2, "embed_dim": 8, "depths": [2, 2], "num_heads": [2, 2], "window_size": 4}
        | {"num_labels": CLASSES, "drop_path_rate": 0.0},
        large_images,
    ),
    "convnext": Entry(
        "vision",
        "ConvNextForImageClassification",
        {"hidden_sizes": [8, 16], "depths": [1, 1], "num_stages": 2, "num_labels": CLASSES},
        large_images,
    ),
    "dinov2": Entry("vision", "Dinov2ForImageClassification", LAYERS | IMAGES, images),
    "segformer": Entry(
        "vision",
        "SegformerForSemanticSegmentation",
        {"hidden_sizes": [8, 16], "depths": [1, 1], "num_encoder_blocks": 2, "num_attention_heads": [1, 2]}
        | {"sr_ratios": [2, 1], "patch_sizes": [7, 3], "strides": [4, 2], "mlp_ratios": [2, 2]}
        | {"decoder_hidden_size": 8, "num_labels": CLASSES, "drop_path_rate": 0.0},
        masks,
    ),
    "clip": Entry(
        "vision",
        "CLIPModel",
        {"text_config": WORDS | LAYERS, "vision_config": LAYERS | IMAGES, "projection_dim": 8},
        captions,
        {"return_loss": True},
    ),
    "whisper": Entry(
        "audio",
        "WhisperForConditionalGeneration",
        WORDS | TWO_SIDES | {"num_mel_bins": 8, "max_source_positions": 8, "max_target_positions": 8},
        speech,
    ),
    "wav2vec2": Entry(
        "audio",
        "Wav2Vec2ForCTC",
        WORDS
        | LAYERS
        | {"conv_dim": [8, 8], "conv_stride": [5, 2], "conv_kernel": [10, 3], "num_feat_extract_layers": 2}
        | {"num_conv_pos_embeddings": 4, "num_conv_pos_embedding_groups": 2, "layerdrop": 0.0, "mask_time_prob": 0.0},
        waves,
    ),
    "ast": Entry(
        "audio",
        "ASTForAudioClassification",
        LAYERS
        | {"num_mel_bins": 16, "max_length": 24, "patch_size": 8, "frequency_stride": 8, "time_stride": 8}
        | {"num_labels": CLASSES},
        spectra,
    ),
    "mixtral": Entry("experts", "MixtralForCausalLM", EXPERTS | {"num_local_experts": 4}),
    "qwen2_moe": Entry(
        "experts", "Qwen2MoeForCausalLM", EXPERTS | {"num_experts": 4, "shared_expert_intermediate_size": 20}
    ),
    "deepseek_v3": Entry(
        "experts",
        "DeepseekV3ForCausalLM",
        EXPERTS
        | LATENT
        | {"num_key_value_heads": 4, "n_routed_experts": 4, "first_k_dense_replace": 1, "n_group": 2, "topk_group": 1},
    ),
    "gpt_oss": Entry("experts", "GptOssForCausalLM", EXPERTS | {"num_local_experts": 4}),
    "mamba": Entry(
        "state space",
        "MambaForCausalLM",
        WORDS | {"hidden_size": 8, "state_size": 4, "num_hidden_layers": 2, "use_cache": False},
    ),
    "mamba2": Entry(
        "state space",
        "Mamba2ForCausalLM",
        WORDS
        | {"hidden_size": 8, "state_size": 4, "num_hidden_layers": 2, "num_heads": 4, "head_dim": 4, "n_groups": 2}
        | {"chunk_size": 4, "use_cache": False},
    ),
}

OFTEN = ("deberta_v2", "falcon", "segformer", "deepseek_v3", "mamba2")  # run by each `make test`


def workload(name: str) -> ss.Workload:
    """In train mode."""
    import transformers

    entry = MODELS[name]
    kind = getattr(transformers, entry.model)
    with seeded(3):
        model, batch = kind(kind.config_class(**entry.config)), entry.batch()
    return ss.Workload(model.train(), (), kwargs=batch | entry.kwargs)


def doubled(name: str) -> ss.Workload:
    work = workload(name)
    kwargs = {k: x.double() if torch.is_tensor(x) and x.is_floating_point() else x for k, x in work.kwargs.items()}
    return replace(work, model=work.model.double(), kwargs=kwargs)


def still(work: ss.Workload) -> ss.Workload:
    """Without dropout, whose masks would be drawn for each microbatch."""
    work.model.eval()
    return work


@contextmanager
def all_in_float64() -> Iterator[None]:
    """The models compute norms, rotations and losses in float32, whatever their weights are; here, in float64."""
    to, softmax = torch.Tensor.to, torch.nn.functional.softmax

    def raised(given: Any) -> Any:
        return torch.float64 if given is torch.float32 else given

    def all_raised(kwargs: dict[str, Any]) -> dict[str, Any]:
        return {name: raised(value) for name, value in kwargs.items()}

    with (
        patch.object(torch.Tensor, "float", torch.Tensor.double),
        patch.object(torch.Tensor, "type", lambda x, dtype: to(x, raised(dtype))),
        patch.object(torch.Tensor, "to", lambda x, *a, **k: to(x, *map(raised, a), **all_raised(k))),
        patch.object(torch.nn.functional, "softmax", lambda *a, **k: softmax(*a, **all_raised(k))),
    ):
        yield


def eager_experts(work: ss.Workload) -> ss.Workload:
    """With one expert after the other, since torch's product by groups takes no float64, and is not counted."""
    for module in work.model.modules():
        config: Any = getattr(module, "config", None)
        if config is not None:
            config._experts_implementation = "eager"
    return work
