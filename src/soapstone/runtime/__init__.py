"""Execute a strategy."""
