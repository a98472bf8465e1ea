"""`python -m benchmarks [--all]`: run the benchmarks and print their tables."""

from . import anchors, breadth, spine

spine.main()
breadth.main()
anchors.main()
