"""Losses and reductions on a part of the batch; a mean divides by the whole count."""

from __future__ import annotations

from math import prod

import torch
import torch.nn.functional as F

from ...rules.loss import MEAN, NONE
from ..place import Combined, CombinedOrAlone, Place, Tensors, combined, kernel


@kernel("mean")
def _mean(place: Place, inputs: Tensors) -> torch.Tensor:
    reduced = prod(d.size for d in place.step.dims if d.name.startswith("r"))
    total: torch.Tensor = _total(place, inputs)
    return total / reduced


@kernel("sum")
def _total(place: Place, inputs: Tensors) -> torch.Tensor:
    dims = place.args.get("dim") or None
    keep = bool(place.args.get("keepdim"))
    return torch.sum(inputs["self"], dims, keepdim=keep, dtype=place.argument("dtype"))


@kernel("mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "binary_cross_entropy",
        "binary_cross_entropy_with_logits", "kl_div")  # fmt: skip
def _elementwise_loss(place: Place, inputs: Tensors) -> torch.Tensor:
    each = _each(place, inputs)
    reduction = place.args["reduction"]
    if reduction == NONE:
        return each
    whole = prod(dim.size for dim in place.step.dims)
    return each.sum() / whole if reduction == MEAN else each.sum()


def _each(place: Place, inputs: Tensors) -> torch.Tensor:
    """The loss of each element."""
    x, target, args = inputs["self"], inputs["target"], place.args
    match place.step.kind:
        case "mse_loss":
            return (x - target) ** 2
        case "l1_loss":
            return (x - target).abs()
        case "smooth_l1_loss":
            return F.smooth_l1_loss(x, target, reduction="none", beta=args["beta"])
        case "huber_loss":
            return F.huber_loss(x, target, reduction="none", delta=args["delta"])
        case "kl_div":
            return F.kl_div(x, target, reduction="none", log_target=args["log_target"])
        case "binary_cross_entropy":
            return F.binary_cross_entropy(x, target, inputs.get("weight"), reduction="none")
    weight, positive = inputs.get("weight"), inputs.get("pos_weight")
    return F.binary_cross_entropy_with_logits(x, target, weight, reduction="none", pos_weight=positive)


@combined("cross_entropy_loss", "nll_loss", "nll_loss_nd", "nll_loss2d")
class _CrossEntropy(Combined):
    """(sum, weight) over the samples of a part; the finish divides."""

    @staticmethod
    def partial(place: Place, inputs: Tensors) -> torch.Tensor:
        scores, target, weight = inputs["self"], inputs["target"], inputs.get("weight")
        smoothing = place.args.get("label_smoothing", 0.0)
        if target.is_floating_point():
            total = F.cross_entropy(scores, target, weight, reduction="sum", label_smoothing=smoothing)
            return torch.stack([total, total.new_tensor(target.numel() / scores.shape[min(scores.ndim - 1, 1)])])
        ignore = place.args["ignore_index"]
        if place.step.kind == "cross_entropy_loss":
            total = F.cross_entropy(
                scores, target, weight, ignore_index=ignore, reduction="sum", label_smoothing=smoothing
            )
        else:
            total = F.nll_loss(scores, target, weight, ignore_index=ignore, reduction="sum")
        return torch.stack([total, _weight(place, inputs).to(total)])

    @staticmethod
    def finish(place: Place, inputs: Tensors, total: torch.Tensor) -> torch.Tensor:
        return _divided(place, total[0], total[1])


@combined("class_loss")
class _ClassLoss(CombinedOrAlone):
    """Cross entropy of each sample from parts of the classes: each part has the largest score, the sum of exponentials
    below it, the target's score and weight and, for label smoothing, the sums of weighted scores and of weights."""

    @staticmethod
    def partial(place: Place, inputs: Tensors) -> torch.Tensor:
        scores, target, weight = inputs["self"], inputs["target"], inputs.get("weight")
        lo, hi = place.interval("class")
        inside = (target >= lo) & (target < hi)
        local = torch.where(inside, target - lo, 0)
        most = scores.detach().amax(1)
        shift = torch.where(most.isinf(), 0, most)  # where every score is -inf, so is its logarithm
        below = (scores - shift[:, None]).exp().sum(1)
        picked = torch.where(inside, scores.gather(1, local[:, None])[:, 0], 0)
        weights = scores.new_ones(hi - lo) if weight is None else weight
        smooth = (scores * weights.view([1, -1] + [1] * (scores.ndim - 2))).sum(1)
        return torch.stack([most, below, picked, weights[local] * inside, smooth, weights.sum().expand_as(most)])

    @staticmethod
    def finish(place: Place, inputs: Tensors, total: torch.Tensor) -> torch.Tensor:
        most, below, picked, weight, smooth, weights = total.unbind(1)
        peak = most.amax(0)
        finite = torch.where(peak.isinf(), 0, peak)
        log_sum = finite + (below * torch.where(most.isinf(), 0, (most - finite).exp())).sum(0).log()
        loss = (log_sum - picked.sum(0)) * weight.sum(0)
        smoothing = float(place.args["label_smoothing"])
        if smoothing:
            spread = (log_sum * weights.sum(0) - smooth.sum(0)) / place.size("class")
            loss = (1 - smoothing) * loss + smoothing * spread
        counted: torch.Tensor = inputs["target"] != place.args["ignore_index"]
        return torch.where(counted, loss, 0)

    @staticmethod
    def alone(place: Place, inputs: Tensors) -> torch.Tensor:
        ignore, smoothing = place.args["ignore_index"], float(place.args["label_smoothing"])
        return F.cross_entropy(
            inputs["self"], inputs["target"], inputs.get("weight"),
            ignore_index=ignore, reduction="none", label_smoothing=smoothing,
        )  # fmt: skip


@combined("class_mean")
class _ClassMean(CombinedOrAlone):
    weighs = True

    @staticmethod
    def partial(place: Place, inputs: Tensors) -> torch.Tensor:
        return torch.stack(_sums(place, inputs))

    @staticmethod
    def finish(place: Place, inputs: Tensors, total: torch.Tensor) -> torch.Tensor:
        return _divided(place, total[0], total[1])

    @staticmethod
    def alone(place: Place, inputs: Tensors) -> torch.Tensor:
        return _divided(place, *_sums(place, inputs))


def _sums(place: Place, inputs: Tensors) -> tuple[torch.Tensor, torch.Tensor]:
    total = inputs["self"].sum()
    return total, _weight(place, inputs).to(total)


def _weight(place: Place, inputs: Tensors) -> torch.Tensor:
    """What all samples of the part count together."""
    target, weight = inputs["target"], inputs.get("weight")
    counted = target != place.args["ignore_index"]
    weights: torch.Tensor = counted if weight is None else weight[torch.where(counted, target, 0)] * counted
    return weights.sum()


def _divided(place: Place, total: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return total / weight if place.args["reduction"] == MEAN else total
