"""Casts tensors as torch.autocast would, on any machine and wherever the model lies.

torch.export does not record the casts of an autocast region: a later decomposition makes them, on the device that the
region names. Here each function gets its arguments in the types that it would compute in. So the graph has the casts,
and code that reads a dtype sees the one that it sees in eager PyTorch. `autocast.yaml` has torch's lists.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import cache
from importlib import resources
from types import FunctionType
from typing import Any, NamedTuple, cast
from unittest.mock import patch

import torch
import yaml
from torch import fx
from torch.fx.traceback import annotate
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map

from ..errors import CaptureError
from .precision import DEVICE_TYPES, Autocast
from .users_code import at, line_here

_KEYS = {"cuda": "AutocastCUDA", "cpu": "AutocastCPU"}
_MARK = "soapstone autocast"


class _Rules(NamedTuple):
    """What autocast does, by an op's name. `known` are the names that torch's own lists have, too."""

    kinds: Mapping[str, str]
    known: frozenset[str]


@cache
def rules_of(device: str) -> _Rules:
    lists = yaml.safe_load((resources.files("soapstone.tracing") / "autocast.yaml").read_text(encoding="utf-8"))[device]
    inside = lists.pop("inside")
    known = {name: kind for kind, names in lists.items() for name in names}
    return _Rules({**known, **{name: kind for kind, names in inside.items() for name in names}}, frozenset(known))


@cache
def registered(device: str) -> frozenset[str]:
    """The names of the ops, torch's own and others, that autocast treats in this version of torch."""
    found = torch._C._dispatch_get_registrations_for_dispatch_key(_KEYS[device])
    return frozenset(name.partition(".")[0] for name in found)


class Casts(TorchFunctionMode):
    """Inside, functions cast their arguments as under this autocast, and as under those that the model itself enters.
    `own` is the type of the device that the model lies on: a region that names it is one of the autocast's device."""

    def __init__(self, autocast: Autocast | None, own: str) -> None:
        super().__init__()
        self.asked, self._own = autocast, own
        self._on: dict[str, Autocast | None] = {own: autocast}  # by the device type that regions name
        self._outer: list[tuple[dict[str, Autocast | None], ExitStack]] = []
        self._weights: dict[tuple[int, torch.dtype], tuple[torch.Tensor, torch.Tensor]] = {}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if self._now is None:
            return func(*args, **kwargs)
        if (body := _body(func)) is not None:
            with self:
                return body(*args, **kwargs)
        if self._is_composed(func, args, kwargs):
            with self:
                return _cross_entropy(*args, **kwargs)
        args, kwargs = self._cast(func, args, kwargs)
        return func(*args, **kwargs)

    def _is_composed(self, func: Any, args: Any, kwargs: Any) -> bool:
        """Whether it calls ops that autocast casts one by one."""
        assert self._now is not None
        if rules_of(self._now.device).kinds.get(_name(func)) != "composed" or len(args) < 2:
            return False
        smoothing = args[5] if len(args) > 5 else kwargs.get("label_smoothing")
        return args[0].dtype == self._now.dtype and not args[1].is_floating_point() and not smoothing

    def _cast(self, func: Any, args: Any, kwargs: Any) -> tuple[Any, Any]:
        assert self._now is not None
        name, low = _name(func), self._now.dtype
        kind = rules_of(self._now.device).kinds.get(name)
        found = [x for x in tree_leaves((args, kwargs)) if is_cast(x)]
        if not found or kwargs.get("out") is not None:
            return args, kwargs
        if kind is None:
            self._check_known(func, name)
        elif kind == "refused":
            raise CaptureError(f"torch refuses {name} under autocast{at(line_here())}; use {name}_with_logits")
        elif kind == "unknown":
            raise CaptureError(self._unknown(name))
        elif kind == "product" and not _is_product(args):
            return args, kwargs
        elif kind == "dtype":
            given = any(isinstance(each, torch.dtype) for each in (*args, kwargs.get("dtype")))
            if not given and is_cast(args[0] if args else kwargs.get("input")):
                return args, {**kwargs, "dtype": torch.float32}
        else:
            widest = torch.float32 if any(x.dtype == torch.float32 for x in found) else low
            to = {"lower": low, "product": low, "promote": widest}.get(kind, torch.float32)
            return tree_map(lambda x: self._to(x, to), args), tree_map(lambda x: self._to(x, to), kwargs)
        return args, kwargs

    def _check_known(self, func: Any, name: str) -> None:
        assert self._now is not None
        space = getattr(func, "namespace", None) or str(getattr(func, "_qualified_op_name", "aten")).partition("::")[0]
        if f"{space}::{name}" in registered(self._now.device):
            raise CaptureError(self._unknown(f"{space}::{name}"))

    def _unknown(self, name: str) -> str:
        return (
            f"{name} casts under autocast in a way that is not known here{at(line_here())}; call it under "
            f'torch.autocast("{self._own}", enabled=False), with tensors of the type that it needs'
        )

    def _to(self, x: Any, dtype: torch.dtype) -> Any:
        if not is_cast(x) or x.dtype == dtype:
            return x
        is_weight = x.dtype == torch.float32 and x.requires_grad and x.is_leaf and not x._is_view()
        if not is_weight or not torch.is_grad_enabled():
            return x.to(dtype)
        key = id(x), dtype
        if key not in self._weights:
            self._weights[key] = x, x.to(dtype)
        return self._weights[key][1]

    # The regions of the model

    @property
    def _now(self) -> Autocast | None:
        """What acts on calls: of the device that the model lies on, or else of the one that it is meant for."""
        return self._on[self._own] or next((each for each in self._on.values() if each is not None), None)

    def _state(self, device: str) -> str | None:
        """Whose state a region that names a device type changes. If something was asked for, there is one state. Else a
        model on a CPU may be meant for another device, which its regions name."""
        if self.asked is not None:
            return self._own if device in (self._own, self.asked.device) else None
        return device if device == self._own or self._own == "cpu" else None

    def enter(self, device: str, dtype: torch.dtype, enabled: bool) -> None:
        marked, state = ExitStack(), self._state(device)
        self._outer.append((self._on, marked))
        if state is not None:
            rules = self.asked.device if self.asked is not None else device
            self._on = {**self._on, state: Autocast(rules, dtype) if enabled else None}
            marked.enter_context(_marked(self._now))

    def exit(self) -> None:
        self._on, marked = self._outer.pop()
        marked.close()
        if self.asked is None and not self._outer:
            self._weights.clear()

    def is_on(self, device: str) -> bool:
        return self.dtype(device) is not None

    def dtype(self, device: str) -> torch.dtype | None:
        """The type that a region of this device type casts to, if there is one around this call."""
        state = self._state(device)
        found = None if state is None else self._on.get(state)
        return None if found is None else found.dtype


def _marked(autocast: Autocast | None) -> AbstractContextManager[None]:
    """Annotate the calls inside with the autocast that they are under."""
    return annotate({_MARK: autocast.device if autocast is not None else ""})


def autocast_of(node: fx.Node) -> Autocast | None:
    """What an exported call was under."""
    device = (node.meta.get("custom") or {}).get(_MARK, "")
    return Autocast(device) if device else None


@contextmanager
def casting(casts: Casts) -> Iterator[None]:
    """Cast, with `torch.autocast` and what asks for its state referring to `casts`, in this thread."""
    thread, autocast = threading.get_ident(), torch.autocast
    is_enabled, dtype_of, known = torch.is_autocast_enabled, torch.get_autocast_dtype, autocast.__init__

    def ours() -> bool:
        return threading.get_ident() == thread

    def init(region: Any, device_type: str, dtype: Any = None, enabled: bool = True, cache_enabled: Any = None) -> None:
        if not ours():
            return known(region, device_type, dtype, enabled, cache_enabled)
        region.device, region._enabled, region._cache_enabled = device_type, enabled, cache_enabled is not False
        region.fast_dtype = dtype or now(device_type)

    def enter(region: Any) -> Any:
        if not ours():
            return entered(region)  # type: ignore[no-untyped-call]
        casts.enter(region.device, region.fast_dtype, region._enabled)
        return region

    def exit_(region: Any, *error: Any) -> Any:
        if not ours():
            return exited(region, *error)
        casts.exit()
        return False

    def is_on(device_type: str | None = None) -> bool:
        if not ours():
            return is_enabled(*(() if device_type is None else (device_type,)))
        return casts.is_on(device_type or "cuda")

    def now(device_type: str) -> torch.dtype:
        return (casts.dtype(device_type) if ours() else None) or dtype_of(device_type)

    def refused(change: Callable[..., None]) -> Callable[..., None]:
        def set_(*args: Any) -> None:
            if ours():
                raise CaptureError(
                    f"forward calls torch.{change.__name__}{at(line_here())}; use torch.autocast instead"
                )
            change(*args)

        return set_

    entered, exited = autocast.__enter__, autocast.__exit__
    with (
        patch.multiple(autocast, __init__=init, __enter__=enter, __exit__=exit_),
        patch.multiple(
            torch,
            is_autocast_enabled=is_on,
            get_autocast_dtype=now,
            is_autocast_cpu_enabled=lambda: is_on("cpu"),
            get_autocast_cpu_dtype=lambda: now("cpu"),
            get_autocast_gpu_dtype=lambda: now("cuda"),
            set_autocast_enabled=refused(torch.set_autocast_enabled),
            set_autocast_dtype=refused(torch.set_autocast_dtype),
        ),
        patch.object(torch._C, "_is_any_autocast_enabled", lambda: any(map(is_on, DEVICE_TYPES))),
        _marked(casts.asked),
        casts,
    ):
        yield


def _cross_entropy(
    x: torch.Tensor, target: torch.Tensor, weight: torch.Tensor | None = None, reduction: int = 1,
    ignore_index: int = -100, label_smoothing: float = 0.0,
) -> torch.Tensor:  # fmt: skip
    """As torch composes it without smoothing: the logarithms are asked for in the type of the logits, and the
    likelihoods are cast."""
    logarithms = torch.log_softmax(x, min(1, x.dim() - 1), dtype=x.dtype)
    likelihood: Any = torch._C._nn
    return cast(torch.Tensor, likelihood.nll_loss_nd(logarithms, target, weight, reduction, ignore_index))


def _is_product(args: Any) -> bool:
    """Whether an einsum sums only what both of its two tensors have, by a product of matrices."""
    equation = args[0] if args and isinstance(args[0], str) else ""
    given, _, made = equation.replace(" ", "").partition("->")
    first, _, second = given.partition(",")
    if not first or not second or "," in second:
        return False
    if "->" not in equation:
        made = "".join(letter for letter in given if given.count(letter) == 1)
    summed = (set(first) | set(second)) - set(made) - {"."}
    return bool(summed) and summed <= set(first) & set(second)


def is_cast(x: Any) -> bool:
    return isinstance(x, torch.Tensor) and x.is_floating_point() and x.dtype != torch.float64


def _name(func: Any) -> str:
    """The op that a function calls, as torch names it: `matmul` for `Tensor.__matmul__`."""
    name = str(getattr(func, "_opname", None) or getattr(func, "__name__", "")).partition(".")[0]
    special = re.fullmatch(r"__(\w+)__", name)
    return special[1] if special else name


@cache
def _body(func: Any) -> Callable[..., Any] | None:
    """A Python function of torch's that looks for overrides, without that look: its calls are then those of ops. None
    for any other function, and for methods that call what they override: that call has the method's own name."""
    if not isinstance(func, FunctionType) or "__class__" in func.__code__.co_freevars:
        return None
    looks = [name for name in func.__code__.co_names if name.startswith("has_torch_function")]
    if not looks:
        return None
    names = {**func.__globals__, **dict.fromkeys(looks, lambda *_: False)}
    body = FunctionType(func.__code__, names, func.__name__, func.__defaults__, func.__closure__)
    body.__kwdefaults__ = func.__kwdefaults__
    return body
