"""Products, look-ups and attention."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from ..place import Combined, CombinedOrAlone, Place, Tensors, call, combined, compute, kernel


@combined("matmul", "mm", "bmm", "einsum", "sum", "mean", "embedding", "routed_mm", "mse_loss", "l1_loss",
          "smooth_l1_loss", "huber_loss", "binary_cross_entropy", "binary_cross_entropy_with_logits",
          "kl_div")  # fmt: skip
class _Sum(Combined):
    """The partial is the result, up to a sum."""

    @staticmethod
    def partial(place: Place, inputs: Tensors) -> torch.Tensor:
        result: torch.Tensor = compute(place, inputs)
        return result

    @staticmethod
    def finish(place: Place, inputs: Tensors, total: torch.Tensor) -> torch.Tensor:
        return total


@combined("linear")
class _Linear(CombinedOrAlone):
    finish_reads = True

    @staticmethod
    def partial(place: Place, inputs: Tensors) -> torch.Tensor:
        return F.linear(inputs["input"], inputs["weight"])

    @staticmethod
    def finish(place: Place, inputs: Tensors, total: torch.Tensor) -> torch.Tensor:
        return total + inputs["bias"] if "bias" in inputs else total

    @staticmethod
    def alone(place: Place, inputs: Tensors) -> torch.Tensor:
        return F.linear(inputs["input"], inputs["weight"], inputs.get("bias"))


@combined("addmm", "baddbmm")
class _AddProduct(Combined):
    finish_reads = True

    @staticmethod
    def partial(place: Place, inputs: Tensors) -> torch.Tensor:
        a, b = ("mat1", "mat2") if place.step.kind == "addmm" else ("batch1", "batch2")
        return torch.matmul(inputs[a], inputs[b]) * float(place.args["alpha"])

    @staticmethod
    def finish(place: Place, inputs: Tensors, total: torch.Tensor) -> torch.Tensor:
        return total + inputs["self"] * float(place.args["beta"])

    alone = staticmethod(call)


@kernel("embedding")
def _embedding(place: Place, inputs: Tensors) -> torch.Tensor:
    """Rows that this part has; zeros for the others, which another part looks up."""
    lo, hi = place.interval("vocab")
    indices, padding = inputs["indices"], place.args["padding_idx"]
    if place.all_of("vocab"):
        return F.embedding(indices, inputs["weight"], padding if padding >= 0 else None)
    inside = (indices >= lo) & (indices < hi)
    rows = F.embedding(torch.where(inside, indices - lo, 0), inputs["weight"])
    rows = rows * inside[..., None].to(rows.dtype)
    if padding >= 0:  # this row gets no gradient
        rows = torch.where((indices == padding)[..., None], rows.detach(), rows)
    return rows


@kernel("scaled_dot_product_attention")
def _attention(place: Place, inputs: Tensors) -> torch.Tensor:
    """Causal parts attend to the keys up to their own last row; the triangle starts at their first."""
    q, k, v, mask = inputs["query"], inputs["key"], inputs["value"], inputs.get("attn_mask")
    gqa = bool(place.args["enable_gqa"]) and q.shape[-3] != k.shape[-3]
    causal = bool(place.args["is_causal"]) and place.all_of("length")
    if place.args["is_causal"] and not causal:
        lo, hi = place.interval("length")
        rows, keys = torch.arange(lo, hi)[:, None], torch.arange(k.shape[-2])[None, :]
        mask = keys <= rows
    scale = place.args["scale"]
    if gqa and q.element_size() > 2:  # fused kernels share keys among heads for numbers of two bytes only
        k, v = (x.repeat_interleave(q.shape[-3] // x.shape[-3], dim=-3) for x in (k, v))
        gqa = False
    if not gqa:  # nor do they take keys that several heads share by broadcasting
        outer = torch.broadcast_shapes(*(x.shape[:-2] for x in (q, k, v)))  # type: ignore[no-untyped-call]
        q, k, v = (x.expand(*outer, *x.shape[-2:]) for x in (q, k, v))
    q, k, v = (_aligned(x) for x in (q, k, v))
    return F.scaled_dot_product_attention(q, k, v, mask, 0.0, causal, scale=scale, enable_gqa=gqa)


def _aligned(x: torch.Tensor) -> torch.Tensor:
    """The same where CUDA's attention may read it, which is 16 bytes at a time: a slice may begin anywhere, and nobody
    else checks."""
    lanes = max(16 // x.element_size(), 1)
    odd = x.storage_offset() % lanes or any(stride % lanes for stride in x.stride()[:-1])
    return x.clone(memory_format=torch.contiguous_format) if odd and x.is_cuda else x
