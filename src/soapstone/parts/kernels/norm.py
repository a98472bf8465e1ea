"""Normalisation and dropout."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from ..place import CombinedOrAlone, Place, Tensors, combined, kernel


@kernel("native_dropout")
def _dropout(place: Place, inputs: Tensors) -> torch.Tensor:
    x, p = next(iter(inputs.values())), float(place.args["p"])
    if p == 0 or not place.args["train"]:
        return x
    if p == 1:
        return x * 0
    assert place.draws is not None
    return x * place.draws.keep(place).to(x.dtype).div_(1 - p)


@kernel("causal_fill")
def _causal_fill(place: Place, inputs: Tensors) -> torch.Tensor:
    later = place.coordinates("key")[None, :] > place.coordinates("length")[:, None]
    return inputs["self"].masked_fill(later, -torch.inf)


@kernel("group_norm")
def _group_norm(place: Place, inputs: Tensors) -> torch.Tensor:
    weight, bias = inputs.get("weight"), inputs.get("bias")
    return F.group_norm(inputs["input"], place.extent("group"), weight, bias, place.args["eps"])


@kernel("_native_batch_norm_legit_no_training")
def _frozen_batch_norm(place: Place, inputs: Tensors) -> torch.Tensor:
    mean, var = inputs["running_mean"], inputs["running_var"]
    return F.batch_norm(
        inputs["input"], mean, var, inputs.get("weight"), inputs.get("bias"), False, 0.0, place.args["eps"]
    )


@kernel("local_batch_norm")
def _local_batch_norm(place: Place, inputs: Tensors) -> torch.Tensor:
    """Every part has its own statistics; the first part along the batch and the positions gives the buffers'."""
    return _torch_batch_norm(place, inputs, gives_statistics(place))


def gives_statistics(place: Place) -> bool:
    """Whether a part of a batch norm updates the buffers. If each part has statistics of its own, only the part with
    the first samples and positions does, as in DistributedDataParallel."""
    sides = zip(place.step.dims, place.dims)
    return place.step.kind != "local_batch_norm" or all(lo == 0 for dim, (lo, _) in sides if dim.name != "channel")


@combined("_native_batch_norm_legit_functional")
class _BatchNorm(CombinedOrAlone):
    """(count, mean, M2) of each part, merged by Chan's formula: sums of squares would lose digits. All in float32 at
    least, as torch has them: narrower types do not even count the samples. Autograd keeps the input, of a narrower type
    its float32 copy, too, and nothing else of that size."""

    finish_reads = True

    @staticmethod
    def partial(place: Place, inputs: Tensors) -> torch.Tensor:
        x = _widened(inputs["input"])
        axes = [i for i in range(x.ndim) if i != 1]
        count = x.numel() // x.shape[1]
        variance, mean = torch.var_mean(x, axes, correction=0)
        return torch.stack([torch.full_like(mean, count), mean, variance * count])

    @staticmethod
    def finish(place: Place, inputs: Tensors, total: torch.Tensor) -> torch.Tensor:
        counts, means, seconds = total.unbind(1)
        count = counts.detach().sum(0)
        mean = (counts * means).sum(0) / count
        variance = (seconds + counts * (means - mean) ** 2).sum(0) / count
        x, eps = inputs["input"], place.args["eps"]
        scale = torch.rsqrt(variance + eps)
        if "weight" in inputs:
            scale = scale * inputs["weight"]
        shift = inputs["bias"] - mean * scale if "bias" in inputs else -mean * scale
        if "running_mean" in inputs:
            momentum = place.args["momentum"]
            unbiased = variance.detach() * count / (count - 1).clamp(min=1)
            for output, name, now in ((3, "running_mean", mean.detach()), (4, "running_var", unbiased)):
                place.updates[output] = torch.lerp(inputs[name], now.to(inputs[name].dtype), momentum)
        y = torch.addcmul(shift.view(_channels(x)), x, scale.view(_channels(x)))
        return y.to(x.dtype)

    @staticmethod
    def alone(place: Place, inputs: Tensors) -> torch.Tensor:
        return _torch_batch_norm(place, inputs, True)


def _torch_batch_norm(place: Place, inputs: Tensors, updates: bool) -> torch.Tensor:
    """torch's own, which changes running statistics in place: whoever runs a part lends it copies of them."""
    names = ("running_mean", "running_var")
    mean, var = (inputs[name].detach() if updates and name in inputs else None for name in names)
    weight, bias = inputs.get("weight"), inputs.get("bias")
    momentum, eps = place.args["momentum"], place.args["eps"]
    y = torch.batch_norm(inputs["input"], weight, bias, mean, var, True, momentum, eps, True)
    if mean is not None and var is not None:
        place.updates.update({3: mean, 4: var})
    return y


def _widened(x: torch.Tensor) -> torch.Tensor:
    return x if x.dtype == torch.float64 else x.float()


def _channels(x: torch.Tensor) -> list[int]:
    return [1, -1] + [1] * (x.ndim - 2)
