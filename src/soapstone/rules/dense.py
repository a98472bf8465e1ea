"""Matrix products and look-ups."""

from __future__ import annotations

from math import prod

from .table import Call, Partial, Rule, times


def _matmul(call: Call) -> str:
    a, b = (len(shape) for shape in call.shapes)
    left = "{k}" if a == 1 else "*b m {k}"
    right = "{k}" if b == 1 else "{k} n" if b == 2 else "*b {k} n"
    return f"{left}, {right} -> {'' if a == 1 and b <= 2 else '*b'} {'m' if a > 1 else ''} {'n' if b > 1 else ''}"


RULES = {
    "linear": Rule(
        "*b {in}, channel {in}, channel -> *b channel",
        slots=("input", "weight", "bias"),
        partial=Partial(finish=lambda call: "bias" in call.slots),
        flops=times(2),
        heavy=True,
    ),
    "matmul": Rule(_matmul, partial=Partial(), flops=times(2), heavy=True),
    "mm": Rule("m {k}, {k} n -> m n", partial=Partial(), flops=times(2), heavy=True),
    "bmm": Rule("b m {k}, b {k} n -> b m n", partial=Partial(), flops=times(2), heavy=True),
    "embedding": Rule(
        "{vocab} channel, *b -> *b channel",
        partial=Partial(),
        flops=lambda extents: prod(extents.values()) // extents["vocab"],
        heavy=True,
    ),
}
