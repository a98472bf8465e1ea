"""`python -m benchmarks [--all]`: run the benchmarks and print their tables."""

from . import spine

spine.main()
