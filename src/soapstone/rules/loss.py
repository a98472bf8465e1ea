"""Losses and reductions: partial sums that combine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from .table import Call, Lookup, Partial, Rule, items, times

NONE, MEAN, SUM = 0, 1, 2  # torch's numbers for reduction


def reduced_axes(call: Call) -> list[int]:
    rank = len(call.shapes[0])
    chosen = call.args.get("dim")
    if chosen is None or chosen == []:
        return list(range(rank))
    return sorted(axis % max(rank, 1) for axis in ([chosen] if isinstance(chosen, int) else chosen))


def _reduction(reduced: str) -> Callable[[Call], str]:
    """Reduced axes are marked: `{r}` combines them, `r!` needs them whole."""

    def line(call: Call) -> str:
        axes, rank = reduced_axes(call), len(call.shapes[0])
        left = [reduced.format(f"r{i}") if i in axes else f"x{i}" for i in range(rank)]
        gone = "1" if call.args.get("keepdim") else ""
        out = " ".join(gone if i in axes else f"x{i}" for i in range(rank))
        return f"{' '.join(left)} -> {', '.join([out] * len(call.outputs))}"

    return line


def _cross_entropy(call: Call) -> str:
    logits, target = call.shapes[0], call.shapes[1]
    if call.args["reduction"] not in (MEAN, SUM):
        left, right = "sample class! *s", "sample *s"
    else:
        left, right = "{sample} class! {*s}", "{sample} {*s}"
    if len(logits) == 1:
        return "class!, class! ->" if logits == target else "class!,, class! ->"
    out = "" if call.args["reduction"] in (MEAN, SUM) else "sample *s"
    return f"{left}, {left if logits == target else right}, class! -> {out}"


def _elementwise_loss(call: Call) -> str:
    each, out = ("*b", "*b") if call.args["reduction"] == NONE else ("{*b}", "")
    return ", ".join([each] * len(call.shapes)) + f" -> {out}"


_ADDED = Rule(_reduction("{{{}}}"), family="pointwise", partial=Partial(), saves="nothing", heavy=True)
_WHOLE = Rule(_reduction("{}!"), family="pointwise", saves="both", heavy=True)
_ELEMENTWISE = Rule(_elementwise_loss, family="pointwise", partial=Partial(), heavy=True)
_CLASSES = Rule(
    _cross_entropy,
    family="pointwise",
    slots=("self", "target", "weight"),
    partial=Partial(spans=(), factor=2, finish=lambda call: True),
    flops=times(4),
    saves="target",
    extra=items(1, "self"),
    heavy=True,
    name="cross_entropy",
)
_PICKED = replace(_CLASSES, lookup=Lookup("target", "class"))  # cross_entropy's targets may be probabilities
_SCORED = Rule(
    "sample {class} *s, sample *s, {class} -> sample *s",
    family="norm",
    slots=("self", "target", "weight"),
    lookup=Lookup("target", "class"),
    partial=Partial("gather", factor=6, finish=lambda call: True),
    flops=times(4),
    saves="target",
    extra=items(1, "self"),
    heavy=True,
    name="cross_entropy",
)
_AVERAGED = Rule(
    "{*b}, {*b}, class ->",
    family="pointwise",
    slots=("self", "target", "weight"),
    partial=Partial(spans=(), factor=2, finish=lambda call: True),
    saves="target",
    heavy=True,
    name="loss_mean",
)
_BY_ELEMENT = ("mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "kl_div")
_BINARY = ("binary_cross_entropy", "binary_cross_entropy_with_logits")
_EXTREMES = ("amax", "amin", "argmax", "argmin", "any", "all", "max", "min", "median")
_OTHERS = ("prod", "var", "std", "logsumexp", "linalg_vector_norm", "norm")

RULES = {
    **dict.fromkeys(("sum", "mean"), _ADDED),
    "cross_entropy_loss": _CLASSES,
    **dict.fromkeys(("nll_loss", "nll_loss_nd", "nll_loss2d"), _PICKED),
    "class_loss": _SCORED,
    "class_mean": _AVERAGED,
    **dict.fromkeys(_BY_ELEMENT + _BINARY, _ELEMENTWISE),
    **dict.fromkeys(_EXTREMES + _OTHERS, _WHOLE),
}
