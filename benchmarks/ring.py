"""Calculated seconds of a data-parallel step, independent of the measured code."""

from __future__ import annotations


def step_s(
    *,
    ranks: int,
    layers: int,
    layer_bytes: int,
    forward_s: float,
    backward_s: float,
    layers_per_bucket: int,
    link_bytes_per_s: float,
) -> float:
    """Seconds of a step of equal layers with a ring all-reduce per bucket, one after the other.

    A bucket starts when its last gradient is ready and the previous bucket has arrived. In a ring all-reduce
    over N ranks each link carries 2 (N - 1) / N of a bucket's bytes (Patarasu and Yuan, 2009). The optimizer
    takes no time.
    """
    arrived_s = 0.0
    for bucket in range(layers // layers_per_bucket):
        ready_s = forward_s + backward_s * (bucket + 1) * layers_per_bucket / layers
        travels_s = 2 * (ranks - 1) / ranks * layers_per_bucket * layer_bytes / link_bytes_per_s
        arrived_s = max(arrived_s, ready_s) + travels_s
    return max(forward_s + backward_s, arrived_s)
