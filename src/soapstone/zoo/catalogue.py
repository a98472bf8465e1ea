"""What the zoo has, as data: no torch."""

from __future__ import annotations

from dataclasses import dataclass

Size = int | tuple[int, ...]


@dataclass(frozen=True)
class Entry:
    """A model: its class, how its data are made and scored, the usual batch, and its sizes with their defaults; those
    in `data_only` the model itself does not take. `parameters` counts millions, as published where it was."""

    about: str
    model: str
    data: str
    loss: str
    batch: int
    sizes: dict[str, Size]
    data_only: tuple[str, ...]
    parameters: float


_IMAGE = {"image": 224, "classes": 1000}

ENTRIES = {
    "lenet": Entry(
        "LeNet-5 for handwritten digits", "cnn.LeNet", "digits", "class", 64,
        {"image": 32, "classes": 10}, ("image",), 0.0617,
    ),
    "alexnet": Entry(
        "AlexNet, one tower", "cnn.AlexNet", "images", "class", 256,
        {**_IMAGE, "width": 64, "hidden": 4096}, ("image",), 61.1,
    ),
    "inception-v3": Entry(
        "Inception-v3 without the auxiliary head", "cnn.Inception", "images", "class", 64,
        {"image": 299, "classes": 1000, "divide": 1}, ("image",), 23.8,
    ),
    "resnet-101": Entry(
        "ResNet-101", "cnn.ResNet", "images", "class", 64,
        {**_IMAGE, "blocks": (3, 4, 23, 3), "width": 64}, ("image",), 44.5,
    ),
    "rnntc": Entry(
        "text classification, 4 LSTM layers", "rnn.RNNTC", "text", "class", 64,
        {"vocab": 10_000, "length": 40, "classes": 2, "hidden": 1024, "layers": 4}, ("length",), 43.8,
    ),
    "rnnlm": Entry(
        "language model, 2 LSTM layers", "rnn.RNNLM", "words", "words", 64,
        {"vocab": 10_000, "length": 40, "hidden": 2048, "layers": 2}, ("length",), 108.1,
    ),
    "nmt": Entry(
        "translation, 2 + 2 LSTM layers and attention", "rnn.NMT", "sentences", "words", 64,
        {"vocab": 32_000, "length": 40, "hidden": 1024, "layers": 2}, ("length",), 135.1,
    ),
    "gpt2": Entry(
        "GPT-2 small", "transformer.GPT2", "words", "words", 8,
        {"vocab": 50_257, "length": 1024, "width": 768, "heads": 12, "layers": 12}, (), 124.4,
    ),
    "llama": Entry(
        "Llama at TinyLlama's size", "transformer.Llama", "words", "words", 8,
        {"vocab": 32_000, "length": 2048, "width": 2048, "heads": 32, "key_heads": 4, "inner": 5632, "layers": 22},
        ("length",), 1100.0,
    ),
    "llama-8b": Entry(
        "Llama 3.1 8B", "transformer.Llama", "words", "words", 8,
        {"vocab": 128_256, "length": 8192, "width": 4096, "heads": 32, "key_heads": 8, "inner": 14_336, "layers": 32},
        ("length",), 8030.3,
    ),
    "llama-70b": Entry(
        "Llama 3.1 70B", "transformer.Llama", "words", "words", 8,
        {"vocab": 128_256, "length": 8192, "width": 8192, "heads": 64, "key_heads": 8, "inner": 28_672, "layers": 80},
        ("length",), 70_553.7,
    ),
    "mixtral": Entry(
        "Mixtral 8x7B, a mixture of experts", "transformer.Mixtral", "words", "words", 8,
        {"vocab": 32_000, "length": 4096, "width": 4096, "heads": 32, "key_heads": 8, "inner": 14_336, "experts": 8,
         "chosen": 2, "layers": 32},
        ("length",), 46_702.8,
    ),
    "dit": Entry(
        "DiT-XL/2, a diffusion transformer", "transformer.DiT", "latents", "noise", 32,
        {"image": 32, "channels": 4, "patch": 2, "width": 1152, "heads": 16, "layers": 28, "classes": 1000}, (), 675.1,
    ),
    "vit": Entry(
        "ViT-B/16", "transformer.ViT", "images", "class", 64,
        {**_IMAGE, "patch": 16, "width": 768, "heads": 12, "layers": 12}, (), 86.6,
    ),
}  # fmt: skip
