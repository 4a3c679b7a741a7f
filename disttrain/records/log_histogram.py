"""A histogram of durations whose bins grow by a per cent: any range, each known to half a per cent.

Imports without torch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

RESOLUTION = 1.01
"""Upper over lower edge of a bin."""
_LOG = math.log(RESOLUTION)
_SHORTEST_S = 1e-9


def bin_of(seconds: float) -> int:
    """The bin that a duration lies in: bin i holds [1.01^i, 1.01^(i+1)) seconds."""
    return math.floor(math.log(max(seconds, _SHORTEST_S)) / _LOG)


def durations(bins: Sequence[Sequence[int]]) -> NDArray[np.float64]:
    """Durations as a histogram of (bin, count) knows them: each bin's middle, as often as it was counted."""
    places, counts = np.asarray(bins, dtype=np.int64).T
    return np.repeat(np.exp((places + 0.5) * _LOG), counts)
