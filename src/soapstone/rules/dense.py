"""Matrix products and look-ups."""

from __future__ import annotations

from dataclasses import replace
from math import prod

from ..errors import GraphError
from .notation import Map
from .table import Call, Extents, Lookup, Partial, Rule, times


def _matmul(call: Call) -> str:
    a, b = (len(shape) for shape in call.shapes)
    left = "{k}" if a == 1 else "*b m {k}"
    right = "{k}" if b == 1 else "{k} n" if b == 2 else "*b {k} n"
    return f"{left}, {right} -> {'' if a == 1 and b <= 2 else '*b'} {'m' if a > 1 else ''} {'n' if b > 1 else ''}"


def _embedding(call: Call) -> str:
    if call.args.get("scale_grad_by_freq"):
        raise GraphError("an embedding whose gradient counts indices needs all of them")
    return "{vocab} channel, *b -> *b channel"


def _embedding_bag(call: Call) -> str:
    """Bags of equal size are seen as look-ups and a sum, and never come here."""
    raise GraphError("bags of unequal size have no rule")


def _add_product(call: Call) -> str:
    names = ["b", "row", "channel"] if call.kind == "baddbmm" else ["row", "channel"]
    added = " ".join(names[len(names) - len(call.shapes[0]) :])
    batch = " ".join(names[:-2])
    return f"{added}, {batch} row {{in}}, {batch} {{in}} channel -> {' '.join(names)}"


def _einsum(call: Call) -> str:
    """The equation is the rule; letters that only inputs have are contracted."""
    left, arrow, right = call.args["equation"].replace(" ", "").partition("->")
    if not arrow or any(len(set(part.replace(".", ""))) < len(part.replace(".", "")) for part in left.split(",")):
        raise GraphError(f"the equation {call.args['equation']!r} has no rule")

    def side(text: str, contracted: bool) -> str:
        rest, _, tail = text.partition("...")
        names = [f"{{{c}}}" if contracted and c not in right else c for c in rest]
        more = [f"{{{c}}}" if contracted and c not in right else c for c in tail]
        return " ".join([*names, *(["*b"] if "..." in text else []), *more])

    return ", ".join(side(part, True) for part in left.split(",")) + " -> " + side(right, False)


def _attention(call: Call) -> str:
    """Causal: a row needs the keys up to itself. Grouped queries: `rep` query heads share a key head."""
    rank = len(call.shape("query"))
    outer = ["sample", "head"][4 - rank :] if rank <= 4 else ["*b"]
    heads = [*outer[:-1], "(head rep)"] if call.args["enable_gqa"] and outer[-1:] == ["head"] else outer
    key = "[length]" if call.args["is_causal"] else "key"
    keys, queries = " ".join(outer), " ".join(heads)
    line = f"{queries} length d, {keys} {key} d, {keys} {key} dv"
    if "attn_mask" in call.slots:
        shape, names = call.shape("attn_mask"), [*heads, "length", "key"]
        line += ", " + " ".join("1" if n == 1 else name for n, name in zip(shape, names[len(names) - len(shape) :]))
    return f"{line} -> {queries} length dv"


def _attention_sizes(call: Call) -> dict[str, int]:
    if not call.args["enable_gqa"] or len(call.shape("query")) != 4:
        return {}
    heads = call.shape("key")[-3]
    return {"head": heads, "rep": call.shape("query")[-3] // heads}


def _attention_flops(call: Call, extents: Extents) -> int:
    keys = extents.get("key", extents["length"])
    widths = extents["d"] + extents["dv"]
    rows = prod(n for name, n in extents.items() if name not in ("key", "d", "dv"))
    return 2 * rows * keys * widths


def _attention_extra(call: Call, item: int) -> int:
    """The sums of each row. Fused kernels share keys among heads for numbers of two bytes only: others keep them
    repeated."""
    rows, heads = prod(call.outputs[0][:-1]), prod(call.outputs[0][:-2])
    if not call.args["enable_gqa"] or item < 4:
        return rows * item
    width = call.shape("key")[-1] + call.shape("value")[-1]
    return (rows + heads * call.shape("key")[-2] * width) * item


_PRODUCT = Rule(_matmul, family="dense", partial=Partial(), flops=times(2), saves="factors", heavy=True)
_ADD_PRODUCT = replace(
    _PRODUCT, line=_add_product, partial=Partial(finish=lambda call: True), saves="mat1 mat2 batch1 batch2"
)

# Products of two matrices are tiled; batched ones have kernels for thin shapes.
RULES = {
    "linear": replace(
        _PRODUCT,
        line="*b {in}, channel {in}, channel -> *b channel",
        slots=("input", "weight", "bias"),
        partial=Partial(finish=lambda call: "bias" in call.slots),
        tiled=True,
    ),
    "mm": replace(_PRODUCT, line="m {k}, {k} n -> m n", tiled=True),
    "addmm": replace(_ADD_PRODUCT, tiled=True),
    "bmm": replace(_PRODUCT, line="b m {k}, b {k} n -> b m n"),
    "baddbmm": _ADD_PRODUCT,
    "matmul": _PRODUCT,
    "einsum": replace(_PRODUCT, line=_einsum),
    "scaled_dot_product_attention": Rule(
        _attention,
        family="attention",
        sizes=_attention_sizes,
        maps=lambda call: {"length": Map((0, 0, 1), (1, 0, 1))},
        flops=_attention_flops,
        saves="both",
        extra=_attention_extra,
        heavy=True,
        name="attention",
    ),
    "embedding": Rule(
        _embedding,
        family="table",
        partial=Partial(),
        flops=lambda call, extents: prod(call.outputs[0]),
        saves="indices",
        heavy=True,
        lookup=Lookup("indices", "vocab", rows=True),
    ),
    # Each row is multiplied by its expert's matrix. Flops are those of all rows, however many experts there are: a part
    # with some of the experts is taken to have its share of the rows.
    "routed_mm": Rule(
        "row {in}, {expert} {in} channel, row -> row channel",
        family="dense",
        partial=Partial(),
        flops=lambda call, extents: 2 * extents["row"] * extents["in"] * extents["channel"],
        heavy=True,
        lookup=Lookup("experts", "expert"),
        name="experts",
    ),
    "embedding_bag": Rule(_embedding_bag, family="pointwise", num_outputs=1),
}
