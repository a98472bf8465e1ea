"""`python -m benchmarks [--all]`: run the benchmarks and print their tables."""

import sys

from . import agreement, anchors, breadth, engines, predict, promise, reality, spine, steps
from .fuzz.__main__ import main as fuzz

spine.main()
breadth.main()
anchors.main()
predict.main()
engines.main()
steps.main()
reality.main()
is_kept = promise.main()
if "--all" in sys.argv:
    agreement.main()
    is_kept = fuzz() and is_kept
sys.exit(not is_kept)
