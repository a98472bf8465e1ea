"""How long a test waits before it calls something hung."""

HANG = 300.0  # seconds: a machine that is ten times slower because it is busy must not fail a test
