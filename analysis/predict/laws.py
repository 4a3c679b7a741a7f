"""Laws of the step time over sizes, for curves of which only step times are known.

At a constant batch of a rank, a law is T(N) = a + b g(N) with b of at least 0. No smooth law is safe: a step
time jumps where a network tier or an algorithm changes. So the prediction is the mean of three laws, and its
interval comes from the errors of the same mean on other curves (`analysis.predict.ledger`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

LAWS: Mapping[str, Callable[[float], float]] = {"log": np.log2, "sqrt": np.sqrt, "linear": float}
"""g(N) of each law; N counts nodes, or devices where nodes are unknown."""


def law(name: str, sizes: Sequence[float], step_s: Sequence[float], target: float) -> float:
    """Step time of one law at `target`, by least squares on the measured sizes; with one size, its time."""
    if len(sizes) == 1:
        return step_s[0]
    x = np.array([LAWS[name](size) for size in sizes])
    y = np.asarray(step_s, dtype=np.float64)
    slope = max(float(np.cov(x, y, bias=True)[0, 1] / x.var()), 0.0)
    return float(y.mean() + slope * (LAWS[name](target) - x.mean()))


def ensemble(sizes: Sequence[float], step_s: Sequence[float], target: float) -> float:
    """Mean of all laws at `target`."""
    return float(np.mean([law(name, sizes, step_s, target) for name in LAWS]))
