"""Strategies as code for what people run without Soapstone."""

from .dtensor import Export, to_dtensor

__all__ = ["Export", "to_dtensor"]
