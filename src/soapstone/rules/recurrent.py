"""Recurrent cells, split by hidden units: unit j needs row j of each gate."""

from __future__ import annotations

from .table import Extents, Rule


def _lstm_flops(extents: Extents) -> int:
    return 8 * extents["sample"] * extents["hidden"] * (extents["in"] + extents["state"])


RULES = {
    "lstm_cell": Rule(
        "sample in, sample state, sample hidden, (4 hidden) in, (4 hidden) state, (4 hidden), (4 hidden)"
        " -> sample hidden, sample hidden",
        slots=("input", "hx.0", "hx.1", "w_ih", "w_hh", "b_ih", "b_hh"),
        flops=_lstm_flops,
        heavy=True,
    ),
}
