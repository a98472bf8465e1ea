"""`python -m benchmarks [--all]`: run the benchmarks and print their tables."""

from . import breadth, spine

spine.main()
breadth.main()
