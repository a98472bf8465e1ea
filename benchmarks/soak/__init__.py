"""Training runs to whose ranks things happen, and what came of them."""
