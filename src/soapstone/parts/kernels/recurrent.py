"""Recurrent cells on some of their hidden units; torch's own take no whole state beside a local one."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from ..place import Place, Tensors, kernel


@kernel("lstm_cell")
def _lstm_cell(place: Place, inputs: Tensors) -> tuple[torch.Tensor, torch.Tensor]:
    b_ih, b_hh, state = inputs.get("b_ih"), inputs.get("b_hh"), [inputs["hx.0"], inputs["hx.1"]]
    if place.all_of("hidden") and inputs["input"].is_cuda:  # there torch has one kernel for what follows the products
        return torch.lstm_cell(inputs["input"], state, inputs["w_ih"], inputs["w_hh"], b_ih, b_hh)
    gates = F.linear(inputs["input"], inputs["w_ih"], b_ih) + F.linear(state[0], inputs["w_hh"], b_hh)
    i, f, g, o = gates.chunk(4, 1)
    cell = torch.sigmoid(f) * state[1] + torch.sigmoid(i) * torch.tanh(g)
    return torch.sigmoid(o) * torch.tanh(cell), cell


@kernel("gru_cell")
def _gru_cell(place: Place, inputs: Tensors) -> torch.Tensor:
    b_ih, b_hh, hx = inputs.get("b_ih"), inputs.get("b_hh"), inputs["hx"]
    if place.all_of("hidden") and inputs["input"].is_cuda:
        return torch.gru_cell(inputs["input"], hx, inputs["w_ih"], inputs["w_hh"], b_ih, b_hh)
    given, state = F.linear(inputs["input"], inputs["w_ih"], b_ih), F.linear(hx, inputs["w_hh"], b_hh)
    (r, z, n), (hr, hz, hn) = given.chunk(3, 1), state.chunk(3, 1)
    keep = torch.sigmoid(z + hz)
    fresh = torch.tanh(n + torch.sigmoid(r + hr) * hn)
    lo, hi = place.interval("hidden")
    return (1 - keep) * fresh + keep * hx[:, lo:hi]


@kernel("rnn_tanh_cell", "rnn_relu_cell")
def _rnn_cell(place: Place, inputs: Tensors) -> torch.Tensor:
    total = F.linear(inputs["input"], inputs["w_ih"], inputs.get("b_ih"))
    total = total + F.linear(inputs["hx"], inputs["w_hh"], inputs.get("b_hh"))
    return torch.tanh(total) if place.step.kind == "rnn_tanh_cell" else torch.relu(total)


@kernel("lstm_chunk")
def _lstm_chunk(place: Place, inputs: Tensors) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Several steps of one layer, as one call: (time, sample, hidden), and the last states."""
    weights = [inputs[name] for name in ("w_ih", "w_hh", "b_ih", "b_hh") if name in inputs]
    states = [inputs["hx.0"][None], inputs["hx.1"][None]]
    biased, x = "b_ih" in inputs, _in_order(place, inputs["input"])
    y, h, c = torch.lstm(x, states, weights, biased, 1, 0.0, False, False, False)
    return _in_order(place, y), h[0], c[0]


@kernel("gru_chunk")
def _gru_chunk(place: Place, inputs: Tensors) -> tuple[torch.Tensor, torch.Tensor]:
    weights = [inputs[name] for name in ("w_ih", "w_hh", "b_ih", "b_hh") if name in inputs]
    biased, x = "b_ih" in inputs, _in_order(place, inputs["input"])
    y, h = torch.gru(x, inputs["hx"][None], weights, biased, 1, 0.0, False, False, False)
    return _in_order(place, y), h[0]


def _in_order(place: Place, x: torch.Tensor) -> torch.Tensor:
    return x.flip(0) if place.args["reverse"] else x
