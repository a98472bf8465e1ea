"""Rows that are put in the order of their experts, and back: a mixture of experts does so that each expert finds its
rows side by side. Every row is computed by itself, so the order changes nothing. The calls are read as if all rows had
stayed where they were, and a product by groups is one in which each row names its expert (`routed_mm`): so samples
stay samples, which can be split, and experts are a dim of their own.

The calls as they were are left to whoever else reads what they make, mostly nobody.
"""

from __future__ import annotations

from ..rules import facts_of
from .rows import again, read_anew, row_axes
from .trace import Recorder, TraceCall

GROUPED = ("_grouped_mm", "grouped_mm", "transformers::grouped_mm_fallback")
_CASTS = ("_to_copy", "to")


def without_sorting(to: Recorder) -> None:
    """Read products by groups without the order that they are in."""
    if any(call.call.kind in GROUPED for call in to.trace.calls):
        routing = _Routing(to)
        read_anew(to, routing.renamed, routing.read)


class _Routing:
    """What is known of values; an order is known by the experts that it sorts by."""

    def __init__(self, to: Recorder) -> None:
        self.to = to
        self.plain: dict[int, tuple[int, int]] = {}  # rows in an order: the order, and the same rows as they were
        self.order: dict[int, int] = {}  # the row that comes to each place
        self.shared: dict[int, tuple[int, int]] = {}  # the same, where so many rows in a row come of one
        self.place: dict[int, int] = {}  # the place that each row comes to
        self.experts: dict[int, int] = {}  # the experts that an order sorts by, in order or not
        self.counts: dict[int, int] = {}  # of rows by expert,
        self.ends: dict[int, int] = {}  # and where each expert's end
        self.renamed: dict[int, int] = {}

    def read(self, call: TraceCall) -> None:
        kind, inputs = call.call.kind, dict(zip(call.call.slots, call.inputs))
        first, out = call.inputs[0] if call.inputs else -1, call.outputs[0]
        if kind in ("sort", "argsort"):
            self._sort(call, first)
        elif kind in ("floor_divide", "div") and first in self.order:
            self._divide(call, first)
        elif kind in ("histc", "bincount") and first in self.experts:
            self.counts[out] = self.experts[first]
        elif kind == "cumsum" and first in self.counts:
            self.ends[out] = self.counts[first]
        elif kind in _CASTS and (first in self.counts or first in self.ends):
            known = self.counts if first in self.counts else self.ends
            known[out] = known[first]
        elif kind == "index" and list(inputs) == ["self", "indices.0"] and call.call.args.get("axis") == 0:
            self._index(call, first, inputs["indices.0"])
        elif kind in ("index_put", "index_put_") and inputs.get("indices.0") in self.order:
            self._put_back(call, inputs)
        elif kind == "index_add" and inputs["index"] in self.shared and call.call.args.get("dim") == 0:
            self._add_back(call, inputs)
        elif kind in GROUPED:
            self._multiply(call)
        elif any(value in self.plain for value in call.inputs):
            self._by_rows(call)

    def _sort(self, call: TraceCall, keys: int) -> None:
        if len(self.to.shape(keys)) != 1 or call.call.args.get("descending"):
            return
        if keys in self.order:  # an order of an order is where each row went
            self.place[call.outputs[-1]] = self.order[keys]
            return
        self.experts[keys] = keys
        self.order[call.outputs[-1]] = keys
        if len(call.outputs) == 2:
            self.plain[call.outputs[0]] = keys, keys
            self.experts[call.outputs[0]] = keys

    def _divide(self, call: TraceCall, order: int) -> None:
        times, kind = call.call.args.get("other"), call.call.kind
        if type(times) is int and (kind == "floor_divide" or call.call.args.get("rounding_mode") in ("floor", "trunc")):
            self.shared[call.outputs[0]] = self.order[order], times

    def _index(self, call: TraceCall, source: int, indices: int) -> None:
        out = call.outputs[0]
        if indices in self.order and self.to.shape(source)[0] == self.to.shape(indices)[0]:
            self.plain[out] = self.order[indices], source
        elif indices in self.shared:
            order, times = self.shared[indices]
            if self.to.shape(source)[0] * times == self.to.shape(indices)[0]:
                self.plain[out] = order, self._repeated(source, times)
        elif indices in self.place and source in self.plain and self.plain[source][0] == self.place[indices]:
            self.renamed[out] = self.plain[source][1]
        elif source in self.plain or indices in self.plain:
            self._by_rows(call)

    def _repeated(self, source: int, times: int) -> int:
        shape = self.to.shape(source)
        args = {"repeats": times, "dim": 0, "output_size": None}
        return self.to.emit(
            "repeat_interleave", {"self": source}, args, (shape[0] * times, *shape[1:]), overload="self_int"
        )[0]

    def _put_back(self, call: TraceCall, inputs: dict[str, int]) -> None:
        """Places written in order, or rows that go back to where they were."""
        order, values, count = self.order[inputs["indices.0"]], inputs["values"], self.to.shape(call.outputs[0])[0]
        if call.call.args.get("accumulate") or count != self.to.shape(inputs["indices.0"])[0]:
            return
        if self.to.counts(values, count):
            self.place[call.outputs[0]] = order
        elif values in self.plain and self.plain[values][0] == order:
            self.renamed[call.outputs[0]] = self.plain[values][1]

    def _add_back(self, call: TraceCall, inputs: dict[str, int]) -> None:
        """Rows that are added up where they came from."""
        order, times = self.shared[inputs["index"]]
        if self.plain.get(inputs["source"], (-1, -1))[0] != order or call.call.args.get("alpha", 1) != 1:
            return
        shape = self.to.shape(inputs["self"])
        apart = (shape[0], times, *shape[1:])
        rows = self.to.emit("view", {"self": self.plain[inputs["source"]][1]}, {"size": list(apart)}, apart)[0]
        args = {"dim": [1], "keepdim": False, "dtype": None}
        added = self.to.emit("sum", {"self": rows}, args, shape, overload="dim_IntList")[0]
        inputs = {"self": inputs["self"], "other": added}
        self.renamed[call.outputs[0]] = self.to.emit(
            "add", inputs, {"alpha": 1}, shape, overload="Tensor", pointwise=True
        )[0]

    def _multiply(self, call: TraceCall) -> None:
        if len(call.inputs) != 3:  # a bias
            return
        rows, weight, ends = call.inputs
        if rows not in self.plain or self.ends.get(ends) != self.plain[rows][0]:
            return
        experts, plain = self.plain[rows]
        inputs = {"input": plain, "weight": weight, "experts": experts}
        dtypes = [self.to.dtype(call.outputs[0])]
        made = self.to.emit("routed_mm", inputs, {}, self.to.shape(call.outputs[0]), dtypes=dtypes)[0]
        self.plain[call.outputs[0]] = experts, made

    def _by_rows(self, call: TraceCall) -> None:
        """Where each row of what it makes comes from the same row of what it reads."""
        orders = {self.plain[value][0] for value in call.inputs if value in self.plain}
        axes = row_axes(call, {value: 0 for value in call.inputs if value in self.plain})
        if len(orders) > 1 or facts_of(call.call.kind).draws or axes is None or any(axes):
            return
        (order,) = orders
        plain = [self.plain[value][1] if value in self.plain else value for value in call.inputs]
        made = again(self.to, call, plain, list(call.call.outputs))
        for sorted_one, own in zip(call.outputs, made):
            self.plain[sorted_one] = order, own
            if call.call.kind in _CASTS and call.inputs[0] in self.experts:
                self.experts[sorted_one] = self.experts[call.inputs[0]]
