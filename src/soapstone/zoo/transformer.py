"""Today's models: GPT-2, Llama, a mixture of experts, ViT and a diffusion transformer."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from ..parts import routed_mm


class Attention(nn.Module):
    """Self-attention; fewer key heads than query heads share theirs, `rotary` turns queries and keys by position."""

    def __init__(
        self, width: int, heads: int, *, key_heads: int | None = None, causal: bool, bias: bool, rotary: bool = False
    ) -> None:
        super().__init__()
        self.heads, self.key_heads, self.causal, self.rotary = heads, key_heads or heads, causal, rotary
        self.size = width // heads
        keys = self.key_heads * self.size
        self.query, self.out = nn.Linear(width, width, bias=bias), nn.Linear(width, width, bias=bias)
        self.key, self.value = nn.Linear(width, keys, bias=bias), nn.Linear(width, keys, bias=bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape

        def split(y: torch.Tensor, heads: int) -> torch.Tensor:
            return y.view(batch, length, heads, self.size).transpose(1, 2)

        q, k, v = (
            split(self.query(x), self.heads),
            split(self.key(x), self.key_heads),
            split(self.value(x), self.key_heads),
        )
        if self.rotary:
            q, k = rotate(q), rotate(k)
        shared = self.key_heads != self.heads
        y = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal, enable_gqa=shared)
        out: torch.Tensor = self.out(y.transpose(1, 2).reshape(batch, length, width))
        return out


def rotate(x: torch.Tensor) -> torch.Tensor:
    """Rotary position embedding: the halves of each head are turned by an angle that grows with the position."""
    length, half = x.shape[-2], x.shape[-1] // 2
    speed = 10_000.0 ** (-torch.arange(half, dtype=x.dtype, device=x.device) / half)
    angle = torch.arange(length, dtype=x.dtype, device=x.device)[:, None] * speed
    turned = torch.cat([-x[..., half:], x[..., :half]], -1)
    return x * torch.cat([angle.cos()] * 2, -1) + turned * torch.cat([angle.sin()] * 2, -1)


class GELUBlock(nn.Module):
    """Layer norm, attention and a GELU network, each beside a shortcut."""

    def __init__(self, width: int, heads: int, causal: bool) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, heads, causal=causal, bias=True)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.norm1(x))
        y: torch.Tensor = x + self.down(F.gelu(self.up(self.norm2(x))))
        return y


class GPT2(nn.Module):
    """Learned positions; the head is the token embedding."""

    def __init__(self, vocab: int, length: int, width: int, heads: int, layers: int) -> None:
        super().__init__()
        self.token, self.position = nn.Embedding(vocab, width), nn.Embedding(length, width)
        self.blocks = nn.Sequential(*(GELUBlock(width, heads, causal=True) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocab, bias=False)
        self.head.weight = self.token.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.token(tokens) + self.position(torch.arange(tokens.shape[1], device=tokens.device))
        logits: torch.Tensor = self.head(self.norm(self.blocks(x)))
        return logits


class LlamaBlock(nn.Module):
    """RMS norm, rotary attention with shared key heads, and a gated network."""

    def __init__(self, width: int, heads: int, key_heads: int, inner: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.RMSNorm(width, 1e-5), nn.RMSNorm(width, 1e-5)
        self.attention = Attention(width, heads, key_heads=key_heads, causal=True, bias=False, rotary=True)
        self.gate, self.up = nn.Linear(width, inner, bias=False), nn.Linear(width, inner, bias=False)
        self.down = nn.Linear(inner, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.norm1(x))
        h = self.norm2(x)
        y: torch.Tensor = x + self.down(F.silu(self.gate(h)) * self.up(h))
        return y


class Experts(nn.Module):
    """Gated networks, of which each token is sent through the few that its router prefers."""

    def __init__(self, width: int, inner: int, experts: int, chosen: int) -> None:
        super().__init__()
        self.chosen = chosen
        self.router = nn.Linear(width, experts, bias=False)
        self.gate, self.up = (nn.Parameter(torch.randn(experts, width, inner) * width**-0.5) for _ in range(2))
        self.down = nn.Parameter(torch.randn(experts, inner, width) * inner**-0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        tokens = x.flatten(0, 1)
        shares, experts = torch.topk(self.router(tokens).softmax(-1), self.chosen)
        rows, own = tokens.repeat_interleave(self.chosen, 0), experts.flatten()
        hidden = F.silu(routed_mm(rows, self.gate, own)) * routed_mm(rows, self.up, own)
        made = routed_mm(hidden, self.down, own).view(*experts.shape, -1)
        weighted: torch.Tensor = (made * (shares / shares.sum(-1, keepdim=True))[..., None]).sum(1)
        return weighted.view_as(x)


class MixtureBlock(nn.Module):
    """A Llama block whose network is a mixture of experts."""

    def __init__(self, width: int, heads: int, key_heads: int, inner: int, experts: int, chosen: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.RMSNorm(width, 1e-5), nn.RMSNorm(width, 1e-5)
        self.attention = Attention(width, heads, key_heads=key_heads, causal=True, bias=False, rotary=True)
        self.experts = Experts(width, inner, experts, chosen)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.norm1(x))
        y: torch.Tensor = x + self.experts(self.norm2(x))
        return y


class Mixtral(nn.Module):
    """Llama with a mixture of experts in each block."""

    def __init__(
        self, vocab: int, width: int, heads: int, key_heads: int, inner: int, experts: int, chosen: int, layers: int
    ) -> None:
        super().__init__()
        self.token = nn.Embedding(vocab, width)
        self.blocks = nn.Sequential(
            *(MixtureBlock(width, heads, key_heads, inner, experts, chosen) for _ in range(layers))
        )
        self.norm, self.head = nn.RMSNorm(width, 1e-5), nn.Linear(width, vocab, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.head(self.norm(self.blocks(self.token(tokens))))
        return logits


class DiTBlock(nn.Module):
    """Attention and a GELU network, each shifted, scaled and weighed by what is to be drawn (adaLN-Zero)."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = (nn.LayerNorm(width, 1e-6, elementwise_affine=False) for _ in range(2))
        self.attention = Attention(width, heads, causal=False, bias=True)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.modulation = nn.Linear(width, 6 * width)

    def forward(self, x: torch.Tensor, about: torch.Tensor) -> torch.Tensor:
        shift1, scale1, weight1, shift2, scale2, weight2 = self.modulation(F.silu(about))[:, None].chunk(6, -1)
        x = x + weight1 * self.attention(self.norm1(x) * (1 + scale1) + shift1)
        h = self.norm2(x) * (1 + scale2) + shift2
        y: torch.Tensor = x + weight2 * self.down(F.gelu(self.up(h), approximate="tanh"))
        return y


class DiT(nn.Module):
    """A diffusion transformer (Peebles and Xie, 2023): what noise is in an image, given its time and its class."""

    def __init__(
        self, image: int, channels: int, patch: int, width: int, heads: int, layers: int, classes: int
    ) -> None:
        super().__init__()
        self.patch, self.frequencies = patch, 256
        self.patches = nn.Conv2d(channels, width, patch, patch)
        self.register_buffer("position", torch.randn(1, (image // patch) ** 2, width) * 0.02)
        self.time1, self.time2 = nn.Linear(self.frequencies, width), nn.Linear(width, width)
        self.label = nn.Embedding(classes + 1, width)
        self.blocks = nn.ModuleList(DiTBlock(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width, 1e-6, elementwise_affine=False)
        self.modulation, self.head = nn.Linear(width, 2 * width), nn.Linear(width, 2 * channels * patch**2)

    def forward(self, x: torch.Tensor, time: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
        half = self.frequencies // 2
        speed = 10_000.0 ** (-torch.arange(half, dtype=x.dtype, device=x.device) / half)
        angle = time[:, None] * speed
        about = self.time2(F.silu(self.time1(torch.cat([angle.cos(), angle.sin()], -1)))) + self.label(label)
        batch, channels, height, _ = x.shape
        y = self.patches(x).flatten(2).transpose(1, 2) + self.position
        for block in self.blocks:
            y = block(y, about)
        shift, scale = self.modulation(F.silu(about))[:, None].chunk(2, -1)
        y = self.head(self.norm(y) * (1 + scale) + shift)
        side = height // self.patch
        y = y.view(batch, side, side, self.patch, self.patch, 2 * channels).permute(0, 5, 1, 3, 2, 4)
        drawn: torch.Tensor = y.reshape(batch, 2 * channels, height, height)
        return drawn


class Llama(nn.Module):
    """RMS norms, rotary positions, shared key heads and gated networks."""

    def __init__(
        self,
        vocab: int,
        width: int,
        heads: int,
        key_heads: int,
        inner: int,
        layers: int,
    ) -> None:
        super().__init__()
        self.token = nn.Embedding(vocab, width)
        self.blocks = nn.Sequential(*(LlamaBlock(width, heads, key_heads, inner) for _ in range(layers)))
        self.norm, self.head = nn.RMSNorm(width, 1e-5), nn.Linear(width, vocab, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.head(self.norm(self.blocks(self.token(tokens))))
        return logits


class ViT(nn.Module):
    """A vision transformer: patches as words, and a first word that gives the class."""

    def __init__(
        self,
        image: int,
        patch: int,
        width: int,
        heads: int,
        layers: int,
        classes: int,
    ) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, patch, patch)
        self.token = nn.Parameter(torch.zeros(1, 1, width))
        self.position = nn.Parameter(torch.randn(1, (image // patch) ** 2 + 1, width) * 0.02)
        self.blocks = nn.Sequential(*(GELUBlock(width, heads, causal=False) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(x.shape[0], -1, -1), x], 1) + self.position
        logits: torch.Tensor = self.head(self.norm(self.blocks(x))[:, 0])
        return logits
