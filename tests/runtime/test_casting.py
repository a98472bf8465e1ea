"""Weights that a model's types cannot represent are refused, with one sentence that names the tensor."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import soapstone as ss
from soapstone.runtime import Parallel
from tests.runtime.test_checkpoint_cases import plain
from tests.runtime.test_checkpoint_files import Odd, on_ranks

NAME = "0.weight"


def overwritten(value: float, dtype: torch.dtype = torch.float64) -> Callable[[torch.Tensor], torch.Tensor]:
    return lambda tensor: torch.full_like(tensor, value, dtype=dtype)


REFUSED: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], str]] = {
    "meta": (lambda tensor: tensor.to("meta"), "has no values"),
    "lazy": (lambda tensor: nn.parameter.UninitializedParameter(), "has no values"),
    "sparse": (lambda tensor: tensor.to_sparse(), "is sparse or nested"),
    "quantized": (lambda tensor: torch.quantize_per_tensor(tensor, 0.1, 0, torch.quint8), "is quantized"),
    "complex": (lambda tensor: tensor.to(torch.complex64), "is complex"),
    "overflow": (overwritten(1e300), "too large for float32"),
    "complex overflow": (overwritten(1e300, torch.complex128), "is complex"),
}


def loaded(make: Callable[[], nn.Module], state: Callable[[], dict[str, Any]]) -> None:
    def act(parallel: Parallel, optimizer: torch.optim.Optimizer, work: ss.Workload) -> None:
        before = parallel.state_dict()
        try:
            parallel.load_state_dict(state())
        finally:
            after = parallel.state_dict()
            assert all(torch.equal(before[name], after[name]) for name in before)

    on_ranks(act, make=make)


@pytest.mark.parametrize("how", REFUSED)
@pytest.mark.filterwarnings("ignore:.*quantize")
@pytest.mark.filterwarnings("ignore:TypedStorage")
def test_a_tensor_that_a_model_cannot_have_is_refused(how: str) -> None:
    change, said = REFUSED[how]

    def state() -> dict[str, Any]:
        found = plain()().state_dict()
        return {**found, NAME: change(found[NAME])}

    with pytest.raises(ss.SoapstoneError, match=rf"'{NAME}' in the state.* {said}|'{NAME}' {said} in the state"):
        loaded(plain(), state)


@pytest.mark.parametrize("value", [3.7, float("nan"), 1e30, -1.0])
def test_a_counter_takes_whole_numbers_that_it_can_hold(value: float) -> None:
    class Counting(nn.Sequential):
        def __init__(self) -> None:
            super().__init__(*plain()().children())
            self.register_buffer("seen", torch.tensor([3], dtype=torch.uint8))

    with pytest.raises(ss.SoapstoneError, match=r"'seen' in the state has values that uint8, its type in the model"):
        loaded(Counting, lambda: {**Counting().state_dict(), "seen": torch.tensor([value])})


def test_tied_weights_that_differ_are_refused() -> None:
    def state() -> dict[str, Any]:
        found = Odd().state_dict()
        return {**found, "last.weight": found["last.weight"] + 1}

    with pytest.raises(ss.SoapstoneError, match=r"differ in the state, but are one tensor in the model"):
        loaded(Odd, state)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_rounding_is_no_change_of_values(dtype: torch.dtype) -> None:
    state = {name: tensor.to(dtype) for name, tensor in plain()().state_dict().items()}

    def act(parallel: Parallel, optimizer: torch.optim.Optimizer, work: ss.Workload) -> bool:
        parallel.load_state_dict(state)
        found = parallel.state_dict()
        return all(torch.equal(found[name], tensor.float()) for name, tensor in state.items())

    assert all(on_ranks(act, make=plain()))
