"""Additive parts of a product: logarithmic mean Divisia index (LMDI).

A time T = T* / (f1 f2 ...) with factors f (efficiencies) divides into parts

    loss_i = L(T, T*) ln(1 / f_i),    L(a, b) = (a - b) / ln(a / b)

that sum exactly to T - T*, in any order of the factors (Ang, Energy Policy 33, 2005). A factor above 1 gives
a negative part: a gain.
"""

from __future__ import annotations

import math
from collections.abc import Mapping


def log_mean(a: float, b: float) -> float:
    """Logarithmic mean of two positive numbers; between their geometric and arithmetic means.

    Raises:
        ValueError: a number is not positive and finite.
    """
    for value in (a, b):
        if not (0 < value < math.inf):
            raise ValueError(f"the logarithmic mean needs positive finite numbers, not {value!r}")
    half = math.log(a / b) / 2
    # L = geometric mean x sinh(h) / h; its series near 0 avoids the difference of nearly equal numbers
    ratio = math.sinh(half) / half if abs(half) > 1e-4 else 1 + half * half / 6
    return math.sqrt(a) * math.sqrt(b) * ratio


def additive_parts(ideal_s: float, factors: Mapping[str, float]) -> dict[str, float]:
    """Seconds lost to each factor between `ideal_s` and `ideal_s` / product of the factors.

    Args:
        ideal_s: time without any loss, in seconds.
        factors: efficiencies, positive; 1 is no loss.

    Returns:
        One part a factor, in seconds; they sum to the actual minus the ideal time.

    Raises:
        ValueError: `ideal_s` or a factor is not positive.
    """
    actual_s = ideal_s / math.prod(factors.values())
    mean_s = log_mean(actual_s, ideal_s)
    return {name: -mean_s * math.log(factor) for name, factor in factors.items()}
