"""What a model recomputes of its own accord: calls inside of torch.utils.checkpoint.

torch.export sees through it, so while it runs, every call inside of a checkpoint is annotated with the checkpoint's
number. Both forms of checkpoint come down to a function of its module, whoever holds `checkpoint` itself by now.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import count
from typing import Any
from unittest.mock import patch

import torch.utils.checkpoint
from torch import fx
from torch.fx.traceback import annotate, preserve_node_meta

from ..graph import Op

_MARK = "soapstone checkpoint"


@contextmanager
def marked_checkpoints() -> Iterator[None]:
    """Annotate instead of recomputing."""
    numbers = count()

    def around(*_: object, **__: object) -> Iterator[None]:
        with annotate({_MARK: next(numbers)}):
            yield

    class Reentrant:
        @staticmethod
        def apply(function: Callable[..., Any], _: bool, *given: Any) -> Any:
            with annotate({_MARK: next(numbers)}):
                return function(*given)

    module = torch.utils.checkpoint
    with (
        preserve_node_meta(),
        patch.object(module, "_checkpoint_without_reentrant_generator", around),
        patch.object(module, "CheckpointFunction", Reentrant),
    ):
        yield


def checkpoint_of(node: fx.Node) -> int | None:
    """The number of the checkpoint that a call is in."""
    found: int | None = (node.meta.get("custom") or {}).get(_MARK)
    return found


def with_recomputed(ops: Sequence[Op], checkpoints: Sequence[int | None], kept: Collection[int]) -> tuple[Op, ...]:
    """The ops, by the checkpoint that each is in: all inside of one are recomputed, but those whose outputs are read
    outside, or are among the tensors that are `kept`."""
    inside = {operand.tensor: own for op, own in zip(ops, checkpoints) for operand in op.outputs}
    given = set(kept)
    for op, own in zip(ops, checkpoints):
        given.update(operand.tensor for operand in op.inputs if inside.get(operand.tensor) != own)
    return tuple(
        replace(op, recompute=own is not None and op.backward and not any(o.tensor in given for o in op.outputs))
        for op, own in zip(ops, checkpoints)
    )
