"""Products by expert: torch's kernel for bfloat16 against expert after expert in float32."""

from __future__ import annotations

import pytest
import torch

from soapstone.parts import routed_mm


@pytest.mark.parametrize(("first", "count"), [(0, 8), (0, 3), (5, 3), (2, 1)])
def test_groups_are_what_experts_do_one_by_one(first: int, count: int) -> None:
    torch.manual_seed(first)
    rows, weights = torch.randn(300, 64, device="cuda"), torch.randn(8, 64, 96, device="cuda") / 8
    experts = torch.randint(0, 7, (300,), device="cuda")  # the last one has none
    grad, found = torch.randn(300, 96, device="cuda"), []
    for dtype in (torch.bfloat16, torch.float32):
        x, w = (given.to(torch.bfloat16).to(dtype).requires_grad_() for given in (rows, weights[first : first + count]))
        y = routed_mm(x, w, experts, first, 8)
        y.backward(grad.to(torch.bfloat16).to(dtype))
        assert x.grad is not None
        assert w.grad is not None
        found.append([y.detach().float(), x.grad.float(), w.grad.float()])
    for fast, exact in zip(*found):
        assert float((fast - exact).abs().max()) <= 0.02 * float(exact.abs().max())
