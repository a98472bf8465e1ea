"""What a part of a step does, as kernels: products of matrices, and passes over memory.

A product of `count` pairs of matrices has m x n sums of k terms each. Its backward is two more: m x k sums of n terms
for the data's gradient and k x n sums of m terms for the weight's. Everything else reads and writes its tensors once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import gcd, prod, sqrt
from typing import NamedTuple

from ...graph import ITEM_SIZES, Op, Step
from ...rules import facts_of
from .table import row_of

SIDE = 64  # of the tiles that a product is computed in

NARROW = 32  # channels that a convolution computes at least
ALIGNED = 8  # channels that tensor cores read at once
# How much longer tensor cores take where a matrix's rows are a multiple of so many bytes only. 50257 words are odd.
UNALIGNED = {16: 1.0, 8: 2.5, 4: 3.0, 2: 7.0, 1: 7.0}
WINOGRAD = 2.0  # what 3 x 3 and 5 x 5 convolutions of stride 1 gain by it, without tensor cores
FEW = 3072  # lookups up to which PyTorch adds up a table's gradient without sorting them
SORTS = 16  # how often a sort passes over what it sorts by
LINE = 512  # bytes that stand for the time of one lookup after the other

HALVES, WAYS = ("partial", "finish"), ("forward", "backward")

Box = Sequence[tuple[int, int]]


class Kernel(NamedTuple):
    """`sums` of `terms` multiply-adds, and `bytes` moved. `tile` is what one tile takes, in multiply-adds, and `lane`
    what one of the lanes moves that a pass is confined to: while they last, most of a small part's device is idle."""

    row: str  # of `figures` in devices.yaml
    dtype: str
    bytes: float
    sums: float = 0.0
    terms: float = 0.0
    tile: float = 0.0
    lane: float = 0.0
    repeats: int = 1  # one after the other
    tensor: float = 1.0  # how many times as long it takes on tensor cores,
    plain: float = 1.0  # and without them


Kernels = list[Kernel]


@dataclass(frozen=True, slots=True)
class StepPart:
    """A step and the boxes that a part of it computes, reads and writes. `wanted` says which inputs have gradients."""

    op: Op
    step: Step
    dims: Box
    needs: Sequence[Box]
    made: Sequence[Box]
    wanted: Sequence[bool]

    @property
    def flops(self) -> float:
        return self.step.flops * size(self.dims) / prod(dim.size for dim in self.step.dims)

    @property
    def dtype(self) -> str:
        return self.op.values[self.step.outputs[0]].dtype

    @property
    def read(self) -> list[int]:
        """Elements of each input."""
        return [size(box) for box in self.needs]

    @property
    def read_bytes(self) -> int:
        return sum(size(box) * ITEM_SIZES[self.op.values[v].dtype] for v, box in zip(self.step.inputs, self.needs))

    @property
    def written(self) -> int:
        return sum(map(size, self.made))

    @property
    def written_bytes(self) -> int:
        return sum(size(box) * ITEM_SIZES[self.op.values[v].dtype] for v, box in zip(self.step.outputs, self.made))


def size(box: Box) -> int:
    return prod(hi - lo for lo, hi in box)


def kernels_of(part: StepPart) -> tuple[Kernels, Kernels]:
    """Forward and backward; nothing where a step only renames elements."""
    facts = facts_of(part.step.kind)
    if part.step.shape and not facts.copies:
        return [], []
    return _BY_FAMILY.get(facts.family, _passes)(part)


def around_combine(part: StepPart, kernels: tuple[Kernels, Kernels]) -> tuple[Kernels, Kernels, Kernels, Kernels]:
    """The same for a head whose partials are combined: before the combine, and after it."""
    row = row_of(part.step.kind)
    forward, backward = kernels
    moved = part.read_bytes + part.written_bytes
    if row == "table":
        looked_up = 2 * part.written_bytes
        return [Kernel("table_partial.forward", part.dtype, looked_up)], backward, [], []
    if row in ("batch_norm", "loss"):
        made = [[Kernel(f"{row}_{half}.{way}", part.dtype, moved)] for half in HALVES for way in WAYS]
        return made[0], made[1], made[2], made[3]
    if part.step.combine is None or not part.step.combine.finish:
        return forward, backward, [], []
    bias = [kernel for kernel in backward if kernel.row == "reduce"]
    add = Kernel("pointwise.forward", part.dtype, 2 * part.written_bytes)
    return forward, [kernel for kernel in backward if kernel not in bias], [add], bias


def _product(
    row: str, dtype: str, moved: float, count: float, m: float, n: float, k: float, repeats: int = 1
) -> Kernel:
    tile = SIDE * sqrt(min(m, SIDE) * min(n, SIDE)) * k  # thin products have thin tiles, but keep less of a unit busy
    return Kernel(row, dtype, moved, count * m * n, k, tile, 0.0, repeats)


def _dense(part: StepPart) -> tuple[Kernels, Kernels]:
    count, m, n, k = _matrices(part)
    moved = part.read_bytes + part.written_bytes
    row = "dense" if count == 1 else "batched"
    products = [
        _product(f"{row}.forward", part.dtype, moved, count, m, n, k),
        _product(f"{row}.data", part.dtype, moved, count, m, k, n),
        _product(f"{row}.weight", part.dtype, moved, count, k, n, m),
    ]
    slower = _unaligned(ITEM_SIZES[part.dtype] * gcd(int(n), int(k)))
    forward, *backward = [product._replace(tensor=slower) for product in products]
    backward = [product for product, wanted in zip(backward, part.wanted) if wanted]
    if len(part.wanted) > 2 and part.wanted[2]:
        backward.append(Kernel("reduce", part.dtype, part.written_bytes))
    if part.step.kind == "routed_mm":
        return [forward, *_sorting(part)], [kernel for product in backward for kernel in (product, *_sorting(part))]
    return [forward], backward


def _sorting(part: StepPart) -> Kernels:
    """What each product by expert does besides: rows are sorted, and what it reads and writes is put in order."""
    rows = part.read[2] * ITEM_SIZES["int64"]
    put = 2 * (part.read[0] + part.written) * ITEM_SIZES[part.dtype]
    return [Kernel("pointwise.forward", "int64", SORTS * rows), Kernel("pointwise.forward", part.dtype, put)]


def _unaligned(bytes: int) -> float:
    return UNALIGNED[gcd(bytes, 16)]


def _matrices(part: StepPart) -> tuple[float, float, float, float]:
    """How many pairs, and m, n and k. A weight without a batch of its own meets all rows at once."""
    if part.step.kind == "routed_mm":  # a pair for each expert, with its share of the rows
        sizes = part.step.sizes(list(part.dims))
        experts = prod(dim.size for dim in part.step.dims if dim.name == "expert")
        return sizes["expert"], sizes["row"] / experts, sizes["channel"], sizes["in"]
    value, box = part.op.values[part.step.outputs[0]], part.made[0]
    last = len(value.factoring[-1]) if value.factoring else 0
    n = size(box[len(box) - last :])
    k = part.flops / max(2 * part.written, 1)
    rows = part.written / max(n, 1)
    ranks = [len(part.op.values[v].shape) for v in part.step.inputs[:2]]
    if part.step.kind == "linear" or len(ranks) < 2 or min(ranks) < 3:
        return 1, rows, n, k
    end = len(box) - last
    m = size(box[end - len(value.factoring[-2]) : end])
    return rows / max(m, 1), m, n, k


def _conv(part: StepPart) -> tuple[Kernels, Kernels]:
    """As the product that it is: outputs by channels, sums over a window."""
    groups = int(part.step.args["groups"])
    weight = part.op.values[part.step.inputs[1]].shape
    window, stride = prod(weight[2:]), prod(part.step.args["stride"])
    if len(part.step.args["stride"]) == 1:
        stride **= len(weight) - 2
    value, box = part.op.values[part.step.outputs[0]], part.made[0]
    samples, channels = (len(axis) for axis in value.factoring[:2])
    n = size(box[samples : samples + channels]) / groups
    m = part.written / max(n * groups, 1)
    k = part.flops / max(2 * part.written, 1)
    inner = max(k / window, 1)
    moved = part.read_bytes + part.written_bytes
    row = _conv_row(part, window, stride, inner)
    k *= max(inner, ALIGNED) / inner
    n = max(n, NARROW)
    pixels = part.read[0] / max(inner * groups, 1)
    products = [
        _product(f"{row}.forward", part.dtype, moved, groups, m, n, k),
        _product(f"{row}.data", part.dtype, moved, groups, pixels, inner, n * window / stride),
        _product(f"{row}.weight", part.dtype, moved, groups, n, k, m),
    ]
    gain = WINOGRAD if weight[2:] in ((3, 3), (5, 5)) and stride == 1 else max(inner, ALIGNED) / inner
    forward, data, backward = [product._replace(plain=1 / gain) for product in products]
    bias = [Kernel("reduce", part.dtype, part.written_bytes)] if len(part.wanted) > 2 else []
    return [forward], [*([data] if part.wanted[0] else []), backward, *bias]


def _conv_row(part: StepPart, window: int, stride: int, inner: float) -> str:
    """cuDNN has other kernels for images, for windows of one pixel, and where rows of pixels begin at odd places."""
    pixels = prod(part.op.values[part.step.inputs[0]].shape[2:])
    if inner < ALIGNED:
        return "conv_image"
    aligned = pixels * ITEM_SIZES[part.dtype] % 16 == 0 and (window > 1 or stride == 1)
    if window == 1:
        return "conv1x1" if aligned else "conv1x1_odd"
    return "conv" if aligned else "conv_odd"


def _attention(part: StepPart) -> tuple[Kernels, Kernels]:
    sizes = part.step.sizes(list(part.dims))
    keys, widths = sizes.get("key", sizes["length"]), sizes["d"] + sizes["dv"]
    scores = part.flops / (2 * widths)
    moved = part.read_bytes + part.written_bytes
    if part.step.args.get("enable_gqa") and ITEM_SIZES[part.dtype] >= 4:
        return _unfused_attention(part, scores, keys, widths / 2)
    causal = 0.5 if part.step.args.get("is_causal") else 1.0
    tile = SIDE * keys * widths * causal
    forward = Kernel("attention.forward", part.dtype, moved, scores * causal, widths, tile)
    return [forward], [forward._replace(row="attention.backward", bytes=2 * moved)]


def _unfused_attention(part: StepPart, scores: float, keys: float, width: float) -> tuple[Kernels, Kernels]:
    """Grouped queries of 4 bytes have no fused kernel: products, and passes over all scores between them."""
    item, length = ITEM_SIZES[part.dtype], part.step.sizes(list(part.dims))["length"]
    count, passed = scores / max(keys * length, 1), scores * item
    moved = passed + part.read_bytes
    products = [
        _product("batched.forward", part.dtype, moved, count, length, keys, width),
        _product("batched.forward", part.dtype, moved, count, length, width, keys),
    ]
    scored = Kernel("scores.forward", part.dtype, passed)
    backward = [product._replace(row="batched.data") for product in products for _ in range(2)]
    return [*products, scored], [*backward, scored._replace(row="scores.backward")]


def _cell(part: StepPart) -> tuple[Kernels, Kernels]:
    """Two products, of the input and of the state, and a pass that makes the gates and the new state of them. Some of
    the hidden units have no fused pass, and their rows of the weights are copied together first."""
    sizes, item = part.step.sizes(list(part.dims)), ITEM_SIZES[part.dtype]
    inner, state, steps = sizes["in"], sizes["state"], sizes.get("time", 1)
    is_split = any(dim.name == "hidden" and hi - lo < dim.size for dim, (lo, hi) in zip(part.step.dims, part.dims))
    m, gates = sizes["sample"], part.flops / (2 * (inner + state) * sizes["sample"] * steps)
    forward, backward = list[Kernel](), list[Kernel]()
    for k, repeats in ((inner, 1), (state, steps)):
        rows = m * steps / repeats
        moved = (rows * k + k * gates + rows * gates) * item
        forward.append(_product("dense.forward", part.dtype, moved, 1, rows, gates, k, repeats))
        if part.wanted[0] or k is state:
            backward.append(_product("dense.data", part.dtype, moved, 1, rows, k, gates, repeats))
        backward.append(_product("dense.weight", part.dtype, moved, 1, k, gates, rows * repeats))
    row, passed = "cell_split" if is_split else "cell", m * gates * item * steps
    if is_split:
        forward.append(Kernel("copy.forward", part.dtype, 2 * (inner + state) * gates * item))
    forward.append(Kernel(f"{row}.forward", part.dtype, 4 * passed))
    return forward, [*backward, Kernel(f"{row}.backward", part.dtype, 5 * passed)]


def _batch_norm(part: StepPart) -> tuple[Kernels, Kernels]:
    """Each channel is one lane's. An axis of size 1 has no dim in its box."""
    samples, channels, *_ = part.op.values[part.step.outputs[0]].factoring
    lanes = size(part.made[0][len(samples) : len(samples) + len(channels)])
    moved = part.read_bytes + part.written_bytes
    forward = Kernel("batch_norm.forward", part.dtype, moved, lane=moved / max(lanes, 1))
    return [forward], [forward._replace(row="batch_norm.backward")]


def _table(part: StepPart) -> tuple[Kernels, Kernels]:
    """Only the rows that are looked up are read; the gradient is a whole table of zeros with those rows added."""
    if facts_of(part.step.kind).lookup is None:
        return _passes(part)
    rows, lookups = 2 * part.written_bytes, part.read[1]
    table = part.read[0] * ITEM_SIZES[part.dtype]
    row = "table_few.backward" if lookups <= FEW else "table.backward"
    backward = [Kernel("fill", part.dtype, table), Kernel(row, part.dtype, rows, lane=LINE * lookups)]
    return [Kernel("table.forward", part.dtype, rows)], backward


def _passes(part: StepPart) -> tuple[Kernels, Kernels]:
    """One pass forward and one back. Sums pass a gradient on as it is; what they stretched is added up again."""
    row = row_of(part.step.kind)
    moved = part.read_bytes + part.written_bytes
    if row == "adaptive_pool" and part.step.args["output_size"] in ([1, 1], [1]):
        row = "mean_pool"  # PyTorch takes the mean instead
    if row == "pointwise" and 1 < min(part.read, default=0) < part.written:
        row = "broadcast"  # which PyTorch does number by number
    forward = [Kernel(f"{row}.forward", part.dtype, moved)]
    if part.step.kind in ("add", "sub", "stack", "cat") or facts_of(part.step.kind).copies:
        stretched = [w and n < part.written for w, n in zip(part.wanted, part.read)]
        sums = any(stretched) and part.step.kind in ("add", "sub")
        return forward, [Kernel("reduce", part.dtype, part.written_bytes)] if sums else []
    moved = moved + part.written_bytes if row in ("pointwise", "broadcast") else moved
    each = sum(part.wanted) if part.step.kind == "mul" else 1
    return forward, [Kernel(f"{row}.backward", part.dtype, moved)] * max(each, 1)


_BY_FAMILY: dict[str, Callable[[StepPart], tuple[Kernels, Kernels]]] = {
    "dense": _dense,
    "conv": _conv,
    "attention": _attention,
    "cell": _cell,
    "batch_norm": _batch_norm,
    "table": _table,
}
