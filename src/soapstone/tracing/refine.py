"""Factor the axes inside one op so that its steps agree on the dims: the common refinement of its views.

A step that reads an axis as `(head d)` makes the step that writes it split by head as well, and so on until nothing
changes. A dim that some read maps stays as it is; the core then covers its parts by hulls.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from .. import _core
from ..graph import Combine, Factor, StepDim
from .trace import TraceCall


@dataclass
class Draft:
    """A step in the making."""

    source: TraceCall
    dims: list[StepDim]
    reads: list[list[list[Factor]]]
    writes: list[list[list[int]]]
    combine: Combine | None
    inputs: list[int] = field(default_factory=list)
    outputs: list[int] = field(default_factory=list)

    def maps(self, number: int) -> bool:
        return any(f.mapped for axis in self.reads[number] for f in axis)

    def read_sizes(self, number: int) -> list[list[int]]:
        return [[f.size for f in axis] for axis in self.reads[number]]

    def write_sizes(self, number: int) -> list[list[int]]:
        return [[self.dims[d].size for d in axis] for axis in self.writes[number]]

    @property
    def extras(self) -> list[int]:
        """Combinable dims that no output has."""
        written = {d for write in self.writes for axis in write for d in axis}
        return [d for d in (self.combine.over if self.combine else ()) if d not in written]


def draft(call: TraceCall) -> Draft:
    bound, combine = call.rule.bind(call.call)
    return Draft(
        call,
        list(bound.dims),
        [[[f for f in axis if f.size > 1 or f.mapped] for axis in read] for read in bound.reads],
        [[[d for d in axis if bound.dims[d].size > 1] for axis in write] for write in bound.writes],
        combine,
    )


def refine(steps: list[Draft]) -> None:
    """Refine the steps' dims until every value is factored alike on both sides, where that can be."""
    makers = {value: (step, i) for step in steps for i, value in enumerate(step.outputs)}
    changed = True
    while changed:
        changed = False
        for step in steps:
            for number, value in enumerate(step.inputs):
                if value in makers:
                    changed |= _agree(*makers[value], step, number)


def _agree(maker: Draft, output: int, reader: Draft, number: int) -> bool:
    changed = False
    for axis in range(len(maker.writes[output])):
        fine = _core.refine(maker.write_sizes(output)[axis], reader.read_sizes(number)[axis])
        if fine is None:
            continue
        changed |= refine_dims(maker, maker.writes[output][axis], fine)
        dims = [f.dim if f.identity else -1 for f in reader.reads[number][axis]]
        if all(d >= 0 for d in dims):
            changed |= refine_dims(reader, dims, fine)
    return changed


def refine_dims(step: Draft, dims: list[int], fine: list[int]) -> bool:
    """Split the first of these dims that `fine` cuts. True where one was split."""
    rest = list(fine)
    for d in dims:
        product, cut = 1, []
        while product < step.dims[d].size:
            cut.append(rest.pop(0))
            product *= cut[-1]
        if len(cut) > 1 and _may_split(step, d):
            _split(step, d, cut)
            return True
    return False


def _may_split(step: Draft, d: int) -> bool:
    if d in step.extras and any(step.writes):  # kernels ask for such a dim by name; where all is summed they do not,
        return False  # and the batch is among it
    return all(f.identity or f.dim != d for read in step.reads for axis in read for f in axis)


def _split(step: Draft, d: int, sizes: list[int]) -> None:
    def moved(i: int) -> list[int]:
        return list(range(d, d + len(sizes))) if i == d else [i if i < d else i + len(sizes) - 1]

    def moved_factor(f: Factor) -> list[Factor]:
        if f.dim == d:
            return [Factor(size, d + k) for k, size in enumerate(sizes)]
        return [replace(f, dim=moved(f.dim)[0]) if f.dim >= 0 else f]

    step.dims[d : d + 1] = [replace(step.dims[d], size=size) for size in sizes]
    step.reads = [[[g for f in axis for g in moved_factor(f)] for axis in read] for read in step.reads]
    step.writes = [[[j for i in axis for j in moved(i)] for axis in write] for write in step.writes]
    if step.combine:
        over, spans = (tuple(j for i in part for j in moved(i)) for part in (step.combine.over, step.combine.dims))
        step.combine = replace(step.combine, over=over, dims=spans)
