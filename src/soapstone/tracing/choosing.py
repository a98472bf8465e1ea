"""Rows that a mask picks, that are computed and put back where they came from: a loop over experts. How many there are
depends on numbers, which no shape may. So all rows are computed, and those that were not picked count nothing.

The reader takes it that a mask picks all (`Trace.chosen` has what it then only seems to know the shape of). Here, calls
on rows that were picked are read anew on all rows, and one that puts rows back leaves out those that are not meant.
What cannot be read so is refused where the loss needs it.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import torch

from ..rules import facts_of
from . import steps
from .rows import again, read_anew, row_axes
from .trace import Recorder, Shape, TraceCall

_WITH_POLES = {
    "log", "log2", "log10", "log1p", "sqrt", "rsqrt", "reciprocal", "acos", "asin", "acosh", "atanh", "tan", "exp",
    "exp2", "expm1", "sinh", "cosh", "logit", "lgamma", "digamma", "xlogy", "logaddexp", "norm", "linalg_vector_norm",
    "std", "var",
}  # fmt: skip
_BY_NUMBER = {"embedding", "index", "gather", "one_hot", "scatter", "scatter_add", "index_add", "routed_mm"}
PICKS = ("nonzero", "nonzero_numpy", "where")  # with nothing but a mask


@dataclass(frozen=True)
class _Rows:
    """Rows that a mask picked: `value` has all of them on its `axis`, for each element of the mask's axes `spans`; they
    are alike along the others."""

    mask: int
    spans: tuple[int, ...]
    axis: int
    value: int


def without_choosing(to: Recorder) -> None:
    """Read rows that are picked by a mask as all rows."""
    if to.trace.chosen:
        choosing = _Choosing(to)
        read_anew(to, choosing.renamed, choosing.read)


def leave_out_picked(to: Recorder) -> None:
    """Read a trace as if nothing that a mask picks were put back."""
    renamed: dict[int, int] = {}

    def read(call: TraceCall) -> None:
        slot = {"index_add": "source", "index_put": "values"}.get(call.call.kind, "")
        put = dict(zip(call.call.slots, call.inputs)).get(slot)
        if put is not None and (put in to.trace.chosen or 0 in to.shape(put)):
            renamed[call.outputs[0]] = call.inputs[0]

    read_anew(to, renamed, read)


class _Choosing:
    def __init__(self, to: Recorder) -> None:
        self.to = to
        self.places: dict[int, tuple[int, int]] = {}  # indices of what is picked: the mask, and which of its axes
        self.tables: dict[int, int] = {}  # the same of all axes, in columns
        self.rows: dict[int, _Rows] = {}
        self.products: dict[int, tuple[_Rows, _Rows]] = {}
        self.ranks: dict[int, int] = {}  # indices that differ along an axis,
        self.single: dict[int, int] = {}  # and masks of which at most one is set there
        self.renamed: dict[int, int] = {}

    def read(self, call: TraceCall) -> None:
        kind, inputs = call.call.kind, dict(zip(call.call.slots, call.inputs))
        first, out = call.inputs[0] if call.inputs else -1, call.outputs[0]
        if kind == "topk":
            self.ranks[call.outputs[1]] = call.call.axis()
        elif kind == "eq" and first in self.ranks and len(call.inputs) == 1:
            self.single[out] = self.ranks[first]
        elif kind == "nonzero":
            self.tables[out] = first
        elif kind in PICKS and len(call.inputs) == 1:
            self.places |= {value: (first, axis) for axis, value in enumerate(call.outputs)}
        elif kind == "select" and first in self.tables and call.call.axis() == 1:
            self.places[out] = self.tables[first], int(call.call.args["index"]) % self.to.shape(first)[1]
        elif kind == "index" and (picked := self._picked(call, inputs)):
            self._pick(call, first, *picked)
        elif kind == "index_add" and inputs["index"] in self.places and call.call.args.get("alpha", 1) == 1:
            self._add(call, inputs["self"], inputs["source"], *self.places[inputs["index"]], call.call.axis())
        elif kind == "index_put" and (picked := self._picked(call, inputs)):
            self._put(call, first, inputs["values"], *picked)
        elif kind == "view" and first in self.tables and self.to.shape(first)[1] == 1:
            self.places[out] = self.tables[first], 0
        elif kind == "view" and first in self.rows:
            self._reshape(call, self.rows[first])
        elif any(value in self.rows for value in call.inputs):
            self._by_rows(call)

    def _picked(self, call: TraceCall, inputs: dict[str, int]) -> tuple[int, tuple[int, ...], int] | None:
        """The mask of a call that picks by one, which of its axes the call names, and the axis of the first."""
        slots = {int(slot.partition(".")[2]): v for slot, v in inputs.items() if slot.startswith("indices.")}
        if sorted(slots) != list(range(min(slots, default=0), min(slots, default=0) + len(slots))):
            return None
        start, indices = int(call.call.args.get("axis", min(slots, default=0))), [slots[i] for i in sorted(slots)]
        shape = self.to.shape(inputs["self"])
        if len(indices) == 1 and self.to.dtype(indices[0]) == "bool" and call.inputs[0] != indices[0]:
            found = indices[0], tuple(range(len(self.to.shape(indices[0]))))
        elif all(index in self.places for index in indices) and len({self.places[i][0] for i in indices}) == 1:
            found = self.places[indices[0]][0], tuple(self.places[index][1] for index in indices)
        else:
            return None
        sizes = tuple(self.to.shape(found[0])[axis] for axis in found[1])
        fits = shape[start : start + len(sizes)] == sizes and len(set(found[1])) == len(sizes)
        return (*found, start) if fits else None

    def _pick(self, call: TraceCall, source: int, mask: int, axes: tuple[int, ...], start: int) -> None:
        """What is picked from stays whole, with one axis for those that the mask names."""
        if axes != tuple(sorted(axes)):
            order = sorted(range(len(axes)), key=lambda i: axes[i])
            source = self._permuted(source, [start + i for i in order], start)
        shape = self.to.shape(source)
        source = steps.view(
            self.to, source, (*shape[:start], prod(shape[start : start + len(axes)]), *shape[start + len(axes) :])
        )
        self.rows[call.outputs[0]] = _Rows(mask, tuple(sorted(axes)), start, source)

    def _reshape(self, call: TraceCall, rows: _Rows) -> None:
        """Where the axis of the rows stays one."""
        before, count = prod(call.call.shapes[0][: rows.axis]), call.call.shapes[0][rows.axis]
        shape, known = call.call.outputs[0], self.to.trace.chosen.get(call.outputs[0])
        axes = [axis for axis, size in enumerate(shape) if size == count and prod(shape[:axis]) == before]
        if known is not None:
            axes = [axis for axis in axes if axis == known.axis]
        if len(axes) == 1:
            made = steps.view(self.to, rows.value, self._sized(shape, axes[0], self._count(rows.mask, rows.spans)))
            self.rows[call.outputs[0]] = _Rows(rows.mask, rows.spans, axes[0], made)

    def _by_rows(self, call: TraceCall) -> None:
        """Where each row of what it makes comes from the same row of what it reads."""
        read = {value: self.rows[value] for value in call.inputs if value in self.rows}
        axes = row_axes(call, {value: rows.axis for value, rows in read.items()})
        masks = {rows.mask for rows in read.values()}
        if axes is None or len(masks) > 1 or facts_of(call.call.kind).draws or self._may_fail(call):
            return
        (mask,) = masks
        spans = tuple(sorted({axis for rows in read.values() for axis in rows.spans}))
        inputs = [self._widened(read[value], spans).value if value in read else value for value in call.inputs]
        count = self._count(mask, spans)
        shapes = [self._sized(shape, axis, count) for shape, axis in zip(call.call.outputs, axes)]
        for out, axis, made in zip(call.outputs, axes, again(self.to, call, inputs, shapes)):
            self.rows[out] = _Rows(mask, spans, axis, made)
        if call.call.kind == "mul" and len(read) == 2:
            first, second = (read[value] for value in call.inputs)
            self.products[call.outputs[0]] = first, second

    def _may_fail(self, call: TraceCall) -> bool:
        """Whether a row that was not picked may give no number, or a slope that is none, which zeros do not undo."""
        kind, args = call.call.kind, call.call.args
        if kind == "pow":
            exponent = args.get("exponent")
            return not isinstance(exponent, int | float) or exponent < 0 or exponent != int(exponent)
        divided = kind in ("div", "remainder", "fmod", "floor_divide") and call.inputs[-1] in self.rows
        return kind in _WITH_POLES or kind in _BY_NUMBER or (divided and len(call.inputs) == 2)

    def _add(self, call: TraceCall, target: int, source: int, mask: int, place: int, axis: int) -> None:
        """Rows that are added up where they came from."""
        rows = self.rows.get(source)
        if rows is None or rows.mask != mask or rows.axis != axis:
            return
        if self.to.shape(target)[axis] == self.to.shape(mask)[place]:
            added = self._total(source, rows, place)
            self.renamed[call.outputs[0]] = self._pointwise("add", {"self": target, "other": added}, {"alpha": 1})

    def _put(self, call: TraceCall, target: int, source: int, mask: int, axes: tuple[int, ...], start: int) -> None:
        """Rows that come in the place of those that they were picked from."""
        rows, rank = self.rows.get(source), len(self.to.shape(mask))
        if rows is None or rows.mask != mask or rows.axis != start:
            return
        if call.call.args.get("accumulate"):
            if len(axes) == 1:
                self._add(call, target, source, mask, axes[0], start)
        elif axes == tuple(range(rank)):
            value = self._widened(rows, axes).value
            if prod(self.to.shape(value)) == prod(self.to.shape(target)):
                set_ = self._mask(mask, axes, self.to.shape(target), start)
                inputs = {"condition": set_, "self": steps.view(self.to, value, self.to.shape(target)), "other": target}
                self.renamed[call.outputs[0]] = self._pointwise("where", inputs, {}, overload="self")
        elif len(axes) == 1 and rank == 2 and self.single.get(mask) == 1 - axes[0]:
            there = self._summed(self._bool(mask), (1 - axes[0],), kind="any")
            shape = self.to.shape(target)
            set_ = steps.view(self.to, there, (*[1] * start, shape[start], *[1] * (len(shape) - start - 1)))
            inputs = {"condition": set_, "self": self._total(source, rows, axes[0]), "other": target}
            self.renamed[call.outputs[0]] = self._pointwise("where", inputs, {}, overload="self")

    def _total(self, source: int, rows: _Rows, place: int) -> int:
        """The sum over all places that a row was picked for. Weights that differ between them are added up before they
        are multiplied."""
        first, second = self.products.get(source, (rows, rows))
        for wide, narrow in ((first, second), (second, first)):
            ranks = {(rows.axis, len(self.to.shape(rows.value))) for rows in (wide, narrow)}
            alike = narrow.spans == (place,) and wide.spans != narrow.spans and len(ranks) == 1
            if alike and prod(self.to.shape(wide.value)) == self._count(wide.mask, wide.spans):
                inputs = {"self": narrow.value, "other": self._spread(wide, place)}
                return self._pointwise("mul", inputs, {}, dtype=self.to.dtype(source))
        return self._spread(rows, place)

    def _spread(self, rows: _Rows, place: int) -> int:
        """Rows with zeros where nothing was picked, added up over all axes of the mask but one."""
        every = tuple(range(len(self.to.shape(rows.mask))))
        rows = self._widened(rows, every)
        shape, sizes = self.to.shape(rows.value), self.to.shape(rows.mask)
        apart = steps.view(self.to, rows.value, (*shape[: rows.axis], *sizes, *shape[rows.axis + 1 :]))
        picked = self._mask(rows.mask, every, self.to.shape(apart), rows.axis)
        clear = self._pointwise("logical_not", {"self": picked}, {}, overload="default")
        kept = self._pointwise("masked_fill", {"self": apart, "mask": clear}, {"value": 0}, overload="Scalar")
        return self._summed(kept, tuple(rows.axis + axis for axis in every if axis != place))

    def _widened(self, rows: _Rows, spans: tuple[int, ...]) -> _Rows:
        """The same rows, repeated along further axes of their mask."""
        if rows.spans == spans:
            return rows
        shape, sizes = self.to.shape(rows.value), self.to.shape(rows.mask)
        before, after = shape[: rows.axis], shape[rows.axis + 1 :]
        apart = steps.view(self.to, rows.value, (*before, *(sizes[a] if a in rows.spans else 1 for a in spans), *after))
        wide = (*before, *(sizes[a] for a in spans), *after)
        value = steps.expand(self.to, apart, wide)
        merged = steps.view(self.to, value, (*before, self._count(rows.mask, spans), *after))
        return _Rows(rows.mask, spans, rows.axis, merged)

    def _count(self, mask: int, spans: tuple[int, ...]) -> int:
        return prod(self.to.shape(mask)[axis] for axis in spans)

    @staticmethod
    def _sized(shape: Shape, axis: int, size: int) -> Shape:
        return (*shape[:axis], size, *shape[axis + 1 :])

    def _bool(self, mask: int) -> int:
        if self.to.dtype(mask) == "bool":
            return mask
        return self._pointwise("ne", {"self": mask}, {"other": 0}, overload="Scalar", dtype="bool")

    def _mask(self, mask: int, axes: tuple[int, ...], shape: Shape, start: int) -> int:
        """A mask, in the order of its axes, that broadcasts over a shape from an axis on."""
        ones = [1] * (len(shape) - start - len(axes))
        return steps.view(self.to, self._bool(mask), (*[1] * start, *self.to.shape(mask), *ones))

    def _permuted(self, value: int, moved: list[int], start: int) -> int:
        shape = self.to.shape(value)
        order = [*range(start), *moved, *range(start + len(moved), len(shape))]
        return steps.permute(self.to, value, order)

    def _summed(self, value: int, axes: tuple[int, ...], kind: str = "sum") -> int:
        if not axes:
            return value
        shape = tuple(n for i, n in enumerate(self.to.shape(value)) if i not in axes)
        if kind == "any":
            return self.to.emit("any", {"self": value}, {"dim": axes[0], "keepdim": False}, shape, overload="dim")[0]
        args = {"dim": list(axes), "keepdim": False, "dtype": None}
        return self.to.emit("sum", {"self": value}, args, shape, overload="dim_IntList")[0]

    def _pointwise(
        self, kind: str, inputs: dict[str, int], args: dict[str, object], overload: str = "Tensor", dtype: str = ""
    ) -> int:
        """Of values whose shapes broadcast to the largest of them."""
        values = list(inputs.values())
        shape = tuple(torch.broadcast_shapes(*(self.to.shape(value) for value in values)))  # type: ignore[no-untyped-call]
        dtypes = [dtype or self.to.dtype(inputs["self"])]
        return self.to.emit(kind, inputs, args, shape, overload=overload, pointwise=True, dtypes=dtypes)[0]
