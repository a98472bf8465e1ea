"""Recurrent cells, split by hidden units: unit j needs row j of each gate."""

from __future__ import annotations

from .table import Call, Extents, Rule, items


def _lstm_flops(call: Call, extents: Extents) -> int:
    return 8 * extents["sample"] * extents["hidden"] * (extents["in"] + extents["state"])


def _cell(gates: int) -> Rule:
    rows = f"({gates} hidden)" if gates > 1 else "hidden"
    return Rule(
        f"sample in, sample state, {rows} in, {rows} state, {rows}, {rows} -> sample hidden",
        family="cell",
        slots=("input", "hx", "w_ih", "w_hh", "b_ih", "b_hh"),
        flops=lambda call, e: 2 * gates * e["sample"] * e["hidden"] * (e["in"] + e["state"]),
        saves="inputs" if gates > 1 else "both",
        extra=items(2 * gates if gates > 1 else 0),
        heavy=True,
        tiled=True,
    )


def _chunk(gates: int, states: tuple[str, ...]) -> Rule:
    """Several time steps as one op, which only splits by sample."""
    weights = "rows in, rows state, rows, rows"
    given = ", ".join(["sample state"] * len(states))
    outputs = ", ".join(["time! sample hidden!"] + ["sample hidden!"] * len(states))
    return Rule(
        f"time! sample in, {given}, {weights} -> {outputs}",
        family="cell",
        slots=("input", *states, "w_ih", "w_hh", "b_ih", "b_hh"),
        flops=lambda call, extents: (
            2 * extents["time"] * extents["sample"] * extents["rows"] * (extents["in"] + extents["state"])
        ),
        extra=items(2 * gates),
        heavy=True,
        tiled=True,
        name="lstm" if gates == 4 else "gru",
    )


RULES = {
    "gru_cell": _cell(3),
    "rnn_tanh_cell": _cell(1),
    "rnn_relu_cell": _cell(1),
    "lstm_chunk": _chunk(4, ("hx.0", "hx.1")),
    "gru_chunk": _chunk(3, ("hx",)),
    "lstm_cell": Rule(
        "sample in, sample state, sample hidden, (4 hidden) in, (4 hidden) state, (4 hidden), (4 hidden)"
        " -> sample hidden, sample hidden",
        family="cell",
        slots=("input", "hx.0", "hx.1", "w_ih", "w_hh", "b_ih", "b_hh"),
        flops=_lstm_flops,
        extra=items(5),
        heavy=True,
        tiled=True,
    ),
}
