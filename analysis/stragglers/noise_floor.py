"""Waiting that measurement noise alone produces, because transfer is a minimum over ranks.

Telemetry estimates transfer as the minimum over ranks of the seconds d_r in a collective, and waiting as
d_r minus that minimum. With noise e_r in d_r the minimum is too small by

    b = E[min_r w_r] - E[min_r (w_r + e_r)]        (w_r: true waiting; its minimum is 0)

so that every rank seems to wait b seconds longer. Where nobody waits, b = -E[min_r e_r], which grows with the
number of ranks: 0.56, 1.42, 2.38 and 3.04 standard deviations of normal noise for 2, 8, 64 and 512 ranks.
Where one rank is later than the others by much more than the noise, b is 0.

All ranks leave a blocking collective together, so own seconds plus seconds in collectives are the same for
all ranks of a step. Their differences are the noise, centred by step; true waiting is max U - U_r with own
seconds U. Resampling this noise on top of true waiting gives b.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from analysis.stats.estimates import Floats

_SAMPLED = 200_000
"""Values of noise drawn for the estimate, over all steps and ranks."""


class NoiseFloor(NamedTuple):
    """Seconds per step."""

    floor_s: float
    """Bias b: waiting to subtract from, and transfer to add to, every rank's mean."""
    noise_s: float
    """Robust standard deviation of the noise of one rank's communication in a step."""


def noise_floor(own_s: Floats, exposed_s: Floats, seed: int = 0) -> NoiseFloor:
    """Estimate the floor of waiting from own seconds and exposed communication, both (ranks, steps).

    Noise of the boundary between own seconds and communication cancels in their sum and is not seen.
    """
    ranks, steps = own_s.shape
    if ranks < 2:
        return NoiseFloor(0.0, 0.0)
    total = own_s + exposed_s
    # the mean over ranks takes a share 1/N of the variance with it
    noise = ((total - total.mean(axis=0)) * np.sqrt(ranks / (ranks - 1))).ravel()
    true_wait = own_s.max(axis=0) - own_s
    random = np.random.default_rng(seed)
    columns = random.choice(steps, max(1, _SAMPLED // ranks))
    drawn = random.choice(noise, (ranks, len(columns)))
    floor = -(true_wait[:, columns] + drawn).min(axis=0).mean()
    scale = 1.4826 * np.median(np.abs(noise - np.median(noise)))
    return NoiseFloor(max(float(floor), 0.0), float(scale))


def corrected_wait(wait_s: Floats, floor: NoiseFloor) -> Floats:
    """Mean waiting of each rank (ranks,) without the floor; may be slightly negative. `wait_s`: (ranks,
    steps). Transfer grows by the same seconds, so that their sum stays."""
    return np.asarray(wait_s.mean(axis=1) - floor.floor_s)
