"""What a simulation says, for people and their tools."""

from .trace import save_events, save_trace

__all__ = ["save_events", "save_trace"]
