"""Embeddings with sparse gradients, which training does not have."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import soapstone as ss
from soapstone.errors import CaptureError

ROWS = torch.zeros(4, 2, dtype=torch.int64)


class Table(nn.Module):
    """A table that is looked up by a function."""

    def __init__(self, by: str, sparse: bool, trained: bool = True) -> None:
        super().__init__()
        self.weight, self.by, self.sparse = nn.Parameter(torch.randn(10, 3), requires_grad=trained), by, sparse
        self.last = nn.Linear(3, 1)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        options = {"sparse": self.sparse, **({"mode": "sum"} if self.by == "embedding_bag" else {})}
        made: torch.Tensor = self.last(getattr(F, self.by)(rows, self.weight, **options))
        return made


@pytest.mark.parametrize("precision", ["", "autocast:cpu"])
@pytest.mark.parametrize(
    "make",
    [
        lambda sparse: nn.Embedding(10, 3, sparse=sparse),
        lambda sparse: nn.EmbeddingBag(10, 3, sparse=sparse),
        lambda sparse: nn.EmbeddingBag(10, 3, sparse=sparse, mode="sum", padding_idx=1),
        lambda sparse: nn.Embedding(10, 3, sparse=sparse, padding_idx=1, scale_grad_by_freq=False),
        lambda sparse: Table("embedding", sparse),
        lambda sparse: Table("embedding_bag", sparse),
    ],
    ids=["embedding", "bag", "bag with padding", "with padding", "F.embedding", "F.embedding_bag"],
)
def test_sparse_gradients_are_refused(make, precision: str) -> None:  # type: ignore[no-untyped-def]
    assert ss.capture(make(False), (ROWS,), loss=torch.sum, precision=precision).ops
    with pytest.raises(CaptureError, match=r"'weight' is looked up with sparse=True.*; leave out sparse=True$"):
        ss.capture(make(True), (ROWS,), loss=torch.sum, precision=precision)


def test_a_sparse_table_that_is_not_trained_has_no_gradients() -> None:
    assert ss.capture(Table("embedding", True, trained=False), (ROWS,), loss=torch.sum).ops
