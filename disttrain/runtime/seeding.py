"""Every generator of random numbers that a model or a dataset may draw from, begun anew."""

from __future__ import annotations

import random

import numpy as np
import torch


def seed_all(seed: int) -> None:
    """Python's, NumPy's and PyTorch's on every device; what they give then depends on `seed` alone."""
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed % 2**32)
