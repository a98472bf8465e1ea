"""Losses and reductions: partial sums that combine."""

from __future__ import annotations

from .table import Call, Partial, Rule, times

MEAN, SUM = 1, 2  # torch's numbers for reduction


def reduced_axes(call: Call) -> list[int]:
    rank = len(call.shapes[0])
    chosen = call.args.get("dim")
    if chosen is None or chosen == []:
        return list(range(rank))
    return sorted(axis % max(rank, 1) for axis in ([chosen] if isinstance(chosen, int) else chosen))


def _reduction(call: Call) -> str:
    axes = reduced_axes(call)
    left = [f"{{r{i}}}" if i in axes else f"x{i}" for i in range(len(call.shapes[0]))]
    kept = [("1" if call.args.get("keepdim") else "") if i in axes else f"x{i}" for i in range(len(left))]
    return f"{' '.join(left)} -> {' '.join(kept)}"


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
    if call.args["reduction"] in (MEAN, SUM):
        return "{*b}, {*b} ->"
    return "*b, *b -> *b"


RULES = {
    "sum": Rule(_reduction, partial=Partial(), heavy=True),
    "mean": Rule(_reduction, partial=Partial(), heavy=True),
    "cross_entropy_loss": Rule(
        _cross_entropy,
        slots=("self", "target", "weight"),
        partial=Partial(spans=(), factor=2, finish=lambda call: True),
        flops=times(4),
        name="cross_entropy",
        heavy=True,
    ),
    "mse_loss": Rule(_elementwise_loss, partial=Partial(), heavy=True),
}
