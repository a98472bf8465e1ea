"""Answers calls that users of DistributedDataParallel make by habit with an error that says what to write instead."""

from __future__ import annotations

from typing import Any, NoReturn, SupportsIndex

import torch
from torch import nn

from ..errors import RankError

_STEP = "call parallel.step(inputs, targets) to train, which returns the loss, or parallel.evaluate(inputs)"
_MOVED = "its device and types are fixed; give parallelize() a device=, or convert the model before ss.capture"
_WRITTEN = {
    "forward": _STEP,
    "module": "the captured model has the trained weights if this rank keeps all of them whole and in place; otherwise "
    "call model.load_state_dict(parallel.state_dict())",
    "train": "parallel.step runs in the mode in which the model was captured; leave train() out",
    "eval": "parallel.evaluate(inputs) is always in eval mode; leave eval() out",
    "backward": "parallel.step has run backward already; leave backward() out",
    "no_sync": "call parallel.step(inputs, targets, sync=False), which accumulates gradients",
    "join": "every rank must take the same number of steps",
    "buffers": "parallel.state_dict() has the whole buffers",
    "named_buffers": "parallel.state_dict() has the whole buffers",
    "compile": "call parallelize(..., compile=True)",
    **dict.fromkeys(("to", "cuda", "cpu", "half", "float", "double", "bfloat16", "type"), _MOVED),
}


class NoSuchMethodError(RankError, AttributeError):
    """A Parallel does not have this method; the message says what to call instead."""


class Habits:
    """The base class of Parallel: raises an error for calls that only a wrapped nn.Module would have."""

    def __getattr__(self, name: str) -> NoReturn:
        if name in _WRITTEN:
            raise NoSuchMethodError(f"a Parallel has no {name!r}: {_WRITTEN[name]}")
        if hasattr(nn.Module, name) and not name.startswith("_"):
            raise NoSuchMethodError(f"a Parallel has no {name!r}, since it is one rank's shards and not an nn.Module")
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}", name=name, obj=self)

    def __call__(self, *inputs: Any, **options: Any) -> NoReturn:
        raise RankError(f"a Parallel is not called; {_STEP}")

    def __deepcopy__(self, memo: object) -> NoReturn:
        raise RankError(
            "a Parallel cannot be copied; for an average of weights, average copies of parallel.parameters() on each "
            "rank"
        )

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        raise RankError(
            "a Parallel cannot be pickled; call parallel.save(folder, optimizer, step=step), or torch.save "
            "parallel.state_dict()"
        )


class StepLoss(torch.Tensor):
    """The loss that a step returns: backward has already run. Results computed with it are plain tensors."""

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    def backward(self, *given: Any, **options: Any) -> NoReturn:
        raise RankError("parallel.step has run backward already; leave loss.backward() out")

    @property
    def _plain(self) -> Any:
        return self.as_subclass(torch.Tensor)

    def __format__(self, given: str) -> str:
        return format(self._plain, given)

    def __repr__(self, **options: Any) -> str:  # type: ignore[override]
        return repr(self._plain)

    def __deepcopy__(self, memo: object) -> torch.Tensor:
        return self.clone()

    def __reduce_ex__(self, protocol: SupportsIndex) -> Any:  # saved as a plain tensor, which torch.load trusts
        return self._plain.__reduce_ex__(protocol)
