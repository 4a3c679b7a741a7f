"""The search of a local batch size: from probes of memory and throughput to a choice. Pure functions.

Peak memory is a + b x batch: weights, gradients and optimizer state do not depend on the batch, activations
are proportional to it. Two probes give a and b.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

from disttrain.records.checkpoint import BatchProbe

EXIT_OUT_OF_MEMORY = 75
"""Exit code of a probe process that could not allocate memory."""
STORE_PREFIX = "DISTTRAIN_PROBE_STORE_PREFIX"
"""Environment variable: prefix of the keys by which the probe processes of all ranks meet."""

RESERVE = 0.07
"""Fraction of the limit kept free, for fragmentation and for growth after the probes."""
SAME_SPEED = 0.02
"""Relative difference of throughput below which the smaller batch is preferred."""
GAIN = 0.03
"""A size that is faster than all before by less than this share counts as no gain."""
STALLS = 2
"""Successive sizes without gain after which no larger one is tried."""
_ROUND_TO = 8
"""Sizes of 8 and more are multiples of it, as matrix units prefer."""


def fit_memory(probes: Sequence[BatchProbe]) -> tuple[float, float]:
    """(a, b) of peak = a + b x batch, in bytes, through the smallest and the largest probe."""
    first, last = probes[0], probes[-1]
    if first.local_batch_size == last.local_batch_size:
        return 0.0, first.peak_bytes / first.local_batch_size
    slope = (last.peak_bytes - first.peak_bytes) / (last.local_batch_size - first.local_batch_size)
    slope = max(0.0, slope)
    return first.peak_bytes - slope * first.local_batch_size, slope


def divisors(number: int) -> list[int]:
    """The divisors of a positive number, in ascending order."""
    small = [size for size in range(1, math.isqrt(number) + 1) if number % size == 0]
    return sorted({*small, *(number // size for size in small)})


def search(
    measure: Callable[[int], BatchProbe],
    multiple: int | None,
    limit: int,
    budget_bytes: float,
    smallest: int = 1,
) -> list[BatchProbe]:
    """Probe growing sizes up to `limit` while their predicted peak fits and they become faster; at the end
    the largest size that fits.

    `multiple`: the local batch size must divide it; None: any size. The result is in ascending order, and is
    empty only without a size between `smallest` and `limit`.
    """
    allowed = [smallest] if multiple is None else divisors(multiple)
    size = next((size for size in allowed if smallest <= size <= limit), None)
    probes: list[BatchProbe] = []
    while size is not None:
        probes.append(measure(size))
        if probes[-1].peak_bytes > budget_bytes or _stalled(probes):
            break
        fixed, slope = fit_memory(probes)
        bound = limit
        if len(probes) > 1 and slope > 0:
            bound = min(limit, int((budget_bytes - fixed) / slope))
        if multiple is None:
            allowed = [2 * size, bound - bound % _ROUND_TO if bound >= _ROUND_TO else bound]
        larger = [other for other in allowed if size < other <= bound]
        size = next((other for other in larger if other >= 1.5 * size), max(larger, default=None))
    return probes


def _stalled(probes: Sequence[BatchProbe]) -> bool:
    """Whether none of the last sizes was faster than the best before them."""
    speeds = [probe.samples_per_s for probe in probes]
    if len(speeds) <= STALLS:
        return False
    return max(speeds[-STALLS:]) < (1 + GAIN) * max(speeds[:-STALLS])


def by_preference(probes: Sequence[BatchProbe], budget_bytes: float) -> Iterator[BatchProbe]:
    """Probes that fit: the fastest first, and of nearly equal ones the smallest; then the smaller ones."""
    fitting = [probe for probe in probes if probe.peak_bytes <= budget_bytes]
    while fitting:
        best = max(probe.samples_per_s for probe in fitting)
        chosen = next(p for p in fitting if p.samples_per_s >= (1 - SAME_SPEED) * best)
        yield chosen
        fitting = [probe for probe in fitting if probe.local_batch_size < chosen.local_batch_size]
