"""`python -m benchmarks [--all]`: run the benchmarks and print their tables."""

from . import anchors, breadth, predict, spine

spine.main()
breadth.main()
anchors.main()
predict.main()
