"""What each kind of step computes on one part, by family; importing them fills the table."""

from . import conv, dense, experts, loss, norm, recurrent, shape

__all__ = ["conv", "dense", "experts", "loss", "norm", "recurrent", "shape"]
