"""What each kind of step computes on one part, by family; importing them fills the table."""

from . import conv, dense, experts, loss, norm, recurrent, shape
from .norm import gives_statistics

__all__ = ["conv", "dense", "experts", "gives_statistics", "loss", "norm", "recurrent", "shape"]
