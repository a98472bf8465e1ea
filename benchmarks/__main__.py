"""`python -m benchmarks [--all]`: run the benchmarks and print their tables."""

import sys

from . import agreement, anchors, breadth, engines, predict, reality, spine, steps
from .fuzz.__main__ import main as fuzz

spine.main()
breadth.main()
anchors.main()
predict.main()
engines.main()
steps.main()
reality.main()
if "--all" in sys.argv:
    agreement.main()
    sys.exit(not fuzz())
