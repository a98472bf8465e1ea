"""Steps that only move elements."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from ..place import Place, Tensors, kernel


@kernel("view")
def _view(place: Place, inputs: Tensors) -> torch.Tensor:
    return inputs["self"].reshape(place.shape())


@kernel("expand")
def _expand(place: Place, inputs: Tensors) -> torch.Tensor:
    return inputs["self"].expand(place.shape())


@kernel("cat")
def _cat(place: Place, inputs: Tensors) -> torch.Tensor:
    filled = [x for x in inputs.values() if x.numel()]
    return torch.cat(filled, place.args["dim"]) if filled else next(iter(inputs.values())).new_zeros(place.shape())


@kernel("stack")
def _stack(place: Place, inputs: Tensors) -> torch.Tensor:
    wanted = [x for x, need in zip(inputs.values(), place.needs) if all(hi > lo for lo, hi in need)]
    return torch.stack(wanted, place.args["dim"]) if wanted else next(iter(inputs.values())).new_zeros(place.shape())


@kernel("slice")
def _slice(place: Place, inputs: Tensors) -> torch.Tensor:
    x = inputs["self"]
    cut = [slice(None)] * x.ndim
    cut[place.args["dim"]] = slice(None, None, place.args["step"])
    return x[tuple(cut)]


@kernel("select")
def _select(place: Place, inputs: Tensors) -> torch.Tensor:
    return inputs["self"].squeeze(place.args["dim"])


@kernel("repeat", "repeat_interleave")
def _repeat(place: Place, inputs: Tensors) -> torch.Tensor:
    """Each output axis is (repeat x) or (x repeat): lay the dims out and let them broadcast."""
    x, step = inputs["self"], place.step
    lengths = [hi - lo for lo, hi in place.dims]
    laid_out = [[1 if step.dims[d].name.startswith("new") else lengths[d] for d in axis] for axis in step.writes[0]]
    expanded = [[lengths[d] for d in axis] for axis in step.writes[0]]
    x = x.reshape([n for axis in laid_out for n in axis]).expand([n for axis in expanded for n in axis])
    return x.reshape(place.shape())


@kernel("constant_pad_nd")
def _pad(place: Place, inputs: Tensors) -> torch.Tensor:
    """What the part wants beyond the input's edges is filled in."""
    x, given = inputs["self"], place.args["pad"]
    pads: list[int] = []
    for back in range(x.ndim):
        axis = x.ndim - 1 - back
        before = given[2 * back] if 2 * back < len(given) else 0
        dims = place.step.writes[0][axis]
        if not dims or 2 * back >= len(given):
            pads += [0, 0]
            continue
        lo, hi = place.dims[dims[0]]
        have_lo, have_hi = _axis_box(place, axis)
        if have_hi <= have_lo:
            have_lo = have_hi = lo - before
        pads += [have_lo - (lo - before), (hi - before) - have_hi]
    return F.pad(x, pads, value=float(place.args["value"]))


def _axis_box(place: Place, axis: int) -> tuple[int, int]:
    before = sum(len(factors) for factors in place.step.reads[0][:axis])
    return place.needs[0][before]


@kernel("upsample_nearest1d", "upsample_nearest2d")
def _upsample(place: Place, inputs: Tensors) -> torch.Tensor:
    x = inputs["input"] if "input" in inputs else inputs["self"]
    names = ("height", "width") if place.has("height") else ("length",)
    for i, name in enumerate(names):
        axis = x.ndim - len(names) + i
        lo, hi = place.interval(name)
        factor = place.step.reads[0][axis][0]
        start = _axis_box(place, axis)[0]
        picked = torch.arange(lo, hi) * factor.size // place.size(name) - start
        x = x.index_select(axis, picked)
    return x


@kernel("index")
def _index(place: Place, inputs: Tensors) -> torch.Tensor:
    indices = [inputs[f"indices.{i}"] for i in range(len(inputs) - 1)]
    return inputs["self"][(slice(None),) * int(place.args["axis"]) + tuple(indices)]
