"""Replay of a step at another size: when each collective starts and ends, and what compute waits for.

Collectives of a step run one after the other, in their order of readiness:

    end(j) = max(end(j - 1), ready(j)) + t(j)
    exposed = max(0, end(last) - end of the backward pass)

The start of a collective in the measured run stands for its readiness. A collective that had to wait for the
one before it starts later than it was ready; at a larger size, where each takes longer, it waits again.
"""

from __future__ import annotations

from collections.abc import Sequence

from scipy.special import ndtri

from analysis.read.profiled import Collective, ProfiledStep


def exposed_s(ready_s: Sequence[float], seconds: Sequence[float], backward_end_s: float) -> float:
    """Exposed communication of a step whose collectives overlap with compute, in seconds.

    Args:
        ready_s: when each collective may start, since the step began, in order.
        seconds: duration of each.
        backward_end_s: end of the compute that hides them.
    """
    end = 0.0
    for ready, duration in zip(ready_s, seconds, strict=True):
        end = max(end, ready) + duration
    return max(0.0, end - backward_end_s)


def largest_of(count: int) -> float:
    """Expected maximum of `count` independent standard normal values, by Blom's formula; within 4 % from 2
    on."""
    return float(ndtri((count - 0.375) / (count + 0.25))) if count > 1 else 0.0


def waiting_s(measured_s: float, nodes: int, target: int) -> float:
    """Mean seconds that ranks wait for the last one, on `target` nodes, from those on `nodes`.

    Ranks wait for the slowest node, so waiting grows as the expected maximum of their jitter. Ranks of one
    node move together, so nodes count.
    """
    return measured_s * largest_of(target) / largest_of(nodes) if nodes > 1 else 0.0


def with_buckets(step: ProfiledStep, bucket_bytes: int) -> ProfiledStep:
    """The step with gradients in buckets of another size, each ready with its last gradient.

    Gradients become ready in the order and at the pace of the measured buckets.

    Raises:
        ValueError: a measured bucket is larger, so that the pace within the new ones is not known.
    """
    sizes = [each.bytes or 0 for each in step.collectives]
    if bucket_bytes < max(sizes):
        raise ValueError(f"{bucket_bytes / 2**20:g} MiB is below the measured {max(sizes) / 2**20:g} MiB")
    buckets, size = list[Collective](), 0
    for each in step.collectives:
        size += each.bytes or 0
        if size >= bucket_bytes or each is step.collectives[-1]:  # DDP closes a bucket that is full
            buckets.append(each._replace(bytes=size))
            size = 0
    return step._replace(collectives=tuple(buckets))
