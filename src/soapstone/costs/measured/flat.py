"""A part's torch calls as flat code, without the Python that decides them: so the runtime runs its segments."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from ...parts import Draws, Place

Code = Callable[..., list[torch.Tensor]]

# They read the kind of their first argument, not its elements.
_FRESH = {"new_zeros", "new_ones", "new_full", "new_empty", "new_tensor", "zeros_like", "ones_like", "full_like"}


def flat(function: Callable[[Draws], list[torch.Tensor]], inputs: Sequence[torch.Tensor]) -> Code:
    """What the function does with these inputs, as code that takes them. Tensors that do not depend on them become
    constants; dropout masks are drawn once."""
    recorder = _Recorder(inputs)
    with recorder:
        outputs = function(_Masks(recorder))
    names = [f"x{i}" for i in range(len(inputs))]
    lines = [*recorder.lines, f"return {recorder.written(outputs)}"]
    source = f"def code({', '.join(names)}):\n" + "".join(f"    {line}\n" for line in lines)
    space = dict(recorder.constants)
    exec(compile(source, "<part>", "exec"), space)  # a Ctrl-C while a string is executed ends Python, caught or not
    code: Code = space["code"]
    return code


class _Recorder(TorchFunctionMode):
    def __init__(self, inputs: Sequence[torch.Tensor]) -> None:
        super().__init__()
        self.lines: list[str] = []
        self.constants: dict[str, Any] = {}
        self.names = {id(x): f"x{i}" for i, x in enumerate(inputs)}
        self._alive: list[Any] = list(inputs)  # so that no other object gets its id

    def __torch_function__(
        self, function: Callable[..., Any], types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        result = function(*args, **kwargs)
        name = getattr(function, "__name__", "")
        depends = any(id(x) in self.names for x in _tensors((args, kwargs))) and name not in _FRESH
        if depends and (name == "__setitem__" or any(True for _ in _tensors(result))):
            self._keep(function, args, kwargs, result)
        return result

    def _keep(self, function: Callable[..., Any], args: Any, kwargs: dict[str, Any], result: Any) -> None:
        given = [self.written(a) for a in args] + [f"{key}={self.written(a)}" for key, a in kwargs.items()]
        made = f"v{len(self.lines)}"
        self.lines.append(f"{made} = {self._constant(function)}({', '.join(given)})")
        self._alive.append(result)
        if isinstance(result, torch.Tensor):
            self.names[id(result)] = made
        elif isinstance(result, tuple | list):
            self.names.update({id(x): f"{made}[{i}]" for i, x in enumerate(result)})

    def depend_on(self, x: torch.Tensor) -> None:
        self.names[id(x)] = self._constant(x)

    def written(self, value: Any) -> str:
        if id(value) in self.names:
            return self.names[id(value)]
        if isinstance(value, slice):
            return f"slice({self.written([value.start, value.stop, value.step])[1:-1]})"
        if isinstance(value, list):
            return f"[{', '.join(map(self.written, value))}]"
        if isinstance(value, tuple):
            return f"({''.join(self.written(item) + ', ' for item in value)})"
        return repr(value) if value is None or type(value) in (bool, int, str) else self._constant(value)

    def _constant(self, value: Any) -> str:
        name = f"c{len(self.constants)}"
        self.constants[name] = value
        return name


class _Masks:
    """Dropout masks, drawn once: where they come from costs the same however an op is split."""

    def __init__(self, recorder: _Recorder) -> None:
        self.recorder = recorder

    def keep(self, place: Place) -> torch.Tensor:
        mask = torch.rand(place.shape()) >= float(place.args["p"])
        self.recorder.depend_on(mask)
        return mask


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict):
        yield from _tensors(list(value.values()))
    elif isinstance(value, tuple | list):
        for item in value:
            yield from _tensors(item)
