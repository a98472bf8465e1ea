"""What every test shares: hypothesis without deadlines, the same examples on CI each time, one torch thread."""

import os

import torch
from hypothesis import settings

settings.register_profile("soapstone", deadline=None, derandomize=bool(os.environ.get("CI")))
settings.load_profile("soapstone")
torch.set_num_threads(1)
