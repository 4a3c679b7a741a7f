"""Seeding of all random number generators."""

from __future__ import annotations

import random

import numpy as np
import torch


def seed_all(seed: int) -> None:
    """Seed the generators of Python, NumPy and PyTorch (every device)."""
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed % 2**32)
