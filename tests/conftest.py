"""What every test shares: hypothesis without a limit on time, the same examples on CI each time, one torch thread, and
Ctrl-C, which a shell's background jobs ignore, and so does all that they start.
"""

import os
import signal

import torch
from hypothesis import HealthCheck, settings

settings.register_profile(
    "soapstone",
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],  # which measures seconds
    derandomize=bool(os.environ.get("CI")),
)
settings.load_profile("soapstone")
torch.set_num_threads(1)
signal.signal(signal.SIGINT, signal.default_int_handler)
