"""The search of a local batch size: from probes of memory and throughput to a choice. Pure functions.

Peak memory is a + b x batch: weights, gradients and optimizer state do not depend on the batch, activations
are proportional to it. Two probes give a and b.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from disttrain.records.batch_fit import BatchProbe

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


def largest_fitting(probes: Sequence[BatchProbe], budget_bytes: float) -> int | None:
    """The largest batch whose predicted peak is at most `budget_bytes`; None without a bound, as when the
    probes are equal."""
    fixed, slope = fit_memory(probes)
    return None if slope == 0 else int((budget_bytes - fixed) / slope)


def growing_sizes(multiple: int | None, limit: int, smallest: int = 1) -> list[int]:
    """Batch sizes to try from `smallest` up to `limit`, in ascending order: powers of two, or divisors of
    `multiple` of which each is at least one and a half times the one before."""
    if multiple is None:
        powers = (1 << power for power in range(limit.bit_length()))
        return [size for size in powers if smallest <= size <= limit]
    sizes: list[int] = []
    for size in divisors(multiple):
        if smallest <= size <= limit and (not sizes or size >= 1.5 * sizes[-1]):
            sizes.append(size)
    return sizes


def divisors(number: int) -> list[int]:
    """The divisors of a positive number, in ascending order."""
    small = [size for size in range(1, int(number**0.5) + 1) if number % size == 0]
    return sorted({*small, *(number // size for size in small)})


def search(
    measure: Callable[[int], BatchProbe],
    multiple: int | None,
    limit: int,
    budget_bytes: float,
    smallest: int = 1,
) -> list[BatchProbe]:
    """Probe growing sizes up to `limit` while their predicted peak fits and they become faster; then the
    largest size that fits.

    `multiple`: the local batch size must divide it; None: any size. The result is in ascending order, and is
    empty only without a size between `smallest` and `limit`.
    """
    probes: list[BatchProbe] = []
    for size in growing_sizes(multiple, limit, smallest):
        if len(probes) >= 2 and not _fits(probes, size, budget_bytes):
            break
        probes.append(measure(size))
        if probes[-1].peak_bytes > budget_bytes or _stalled(probes):
            return probes
    size = _last_size(probes, multiple, limit, budget_bytes) if probes else 0
    if probes and size > probes[-1].local_batch_size:
        probes.append(measure(size))
    return probes


def _fits(probes: Sequence[BatchProbe], size: int, budget_bytes: float) -> bool:
    largest = largest_fitting(probes, budget_bytes)
    return largest is None or size <= largest


def _stalled(probes: Sequence[BatchProbe]) -> bool:
    """Whether none of the last sizes was faster than the best before them."""
    speeds = [probe.samples_per_s for probe in probes]
    if len(speeds) <= STALLS:
        return False
    return max(speeds[-STALLS:]) < (1 + GAIN) * max(speeds[:-STALLS])


def _last_size(probes: Sequence[BatchProbe], multiple: int | None, limit: int, budget_bytes: float) -> int:
    largest = largest_fitting(probes, budget_bytes)
    bound = limit if largest is None else min(limit, largest)
    if multiple is not None:
        return max((size for size in divisors(multiple) if size <= bound), default=0)
    return bound - bound % _ROUND_TO if bound >= _ROUND_TO else bound


def by_preference(probes: Sequence[BatchProbe], budget_bytes: float) -> Iterator[BatchProbe]:
    """Probes that fit: the fastest first, and of nearly equal ones the smallest; then the smaller ones."""
    fitting = [probe for probe in probes if probe.peak_bytes <= budget_bytes]
    while fitting:
        best = max(probe.samples_per_s for probe in fitting)
        chosen = next(p for p in fitting if p.samples_per_s >= (1 - SAME_SPEED) * best)
        yield chosen
        fitting = [probe for probe in fitting if probe.local_batch_size < chosen.local_batch_size]
