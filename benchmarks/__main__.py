"""`python -m benchmarks [--all]`: run the benchmarks and print their tables."""

import sys

from . import agreement, anchors, breadth, engines, predict, spine

spine.main()
breadth.main()
anchors.main()
predict.main()
engines.main()
if "--all" in sys.argv:
    agreement.main()
