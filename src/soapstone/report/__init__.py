"""What a simulation says, for people and their tools."""

from .trace import save_trace

__all__ = ["save_trace"]
