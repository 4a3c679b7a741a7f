"""Log-scale histogram of durations: bins grow by 1 %, so a value is known to 0.5 % over any range."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

RESOLUTION = 1.01
"""Ratio of the upper to the lower edge of a bin."""
_LOG = math.log(RESOLUTION)
_SHORTEST_S = 1e-9


def bin_of(seconds: float) -> int:
    """Index of the bin of a duration: bin i covers [1.01^i, 1.01^(i+1)) seconds."""
    return math.floor(math.log(max(seconds, _SHORTEST_S)) / _LOG)


def durations(bins: Sequence[Sequence[int]]) -> NDArray[np.float64]:
    """Durations in seconds from (bin, count) pairs: the geometric middle of each bin, repeated by its
    count."""
    places, counts = np.asarray(bins, dtype=np.int64).T
    return np.repeat(np.exp((places + 0.5) * _LOG), counts)
