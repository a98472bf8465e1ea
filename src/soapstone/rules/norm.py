"""Normalisation, softmax and dropout."""

from __future__ import annotations

from .table import Call, Partial, Rule, times


def _softmax(call: Call) -> str:
    names = [f"x{i}!" if i == call.axis() else f"x{i}" for i in range(len(call.shapes[0]))]
    return f"{' '.join(names)} -> {' '.join(names)}"


_BATCH_NORM = Rule(
    "{sample} channel {*s}, channel, channel, channel, channel -> sample channel *s",
    slots=("input", "weight", "bias", "running_mean", "running_var"),
    partial=Partial("gather", ("channel",), factor=3, finish=lambda call: True),
    flops=times(8),
    name="batch_norm",
    heavy=True,
)

RULES = {
    "_native_batch_norm_legit_functional": _BATCH_NORM,
    "softmax": Rule(_softmax),
    "_softmax": Rule(_softmax),
    "log_softmax": Rule(_softmax),
    "_log_softmax": Rule(_softmax),
    "dropout": Rule("*b -> *b", name="dropout"),
    "native_dropout": Rule("*b -> *b", name="dropout"),
}
