"""Figures that join the profiled steps, which list collectives, with all measured steps, which time them.

A run profiles few steps, sometimes one, and a profiled step can be far from the mean.
"""

from __future__ import annotations

from disttrain.records.communication import CommSummary

NOTHING_HIDDEN = 0.02
"""Largest hidden share of communication at which exposed transfer is all transfer."""
REPRESENTATIVE = 1.25
"""Largest ratio, either way, between exposed communication of the profiled steps and of all steps."""


def bus_bandwidth(summary: CommSummary, transfer_s: float | None) -> float | None:
    """Bus bytes per second of a step, over all measured steps where nothing is hidden, else over the profiled
    ones; None where the bytes are unknown.

    Args:
        transfer_s: exposed transfer of a step, mean over all measured steps; None where it is unknown.
    """
    if summary.bus_bytes_per_s is None or not transfer_s or not is_exposed(summary):
        return summary.bus_bytes_per_s
    each = [(one.bus_bytes_per_s, one.transfer_s) for one in summary.collectives]
    if any(rate is None for rate, _ in each):
        return summary.bus_bytes_per_s
    return sum((rate or 0.0) * seconds for rate, seconds in each) / transfer_s


def is_exposed(summary: CommSummary) -> bool:
    """Whether next to no communication of the profiled steps is hidden under compute."""
    return summary.hidden_s <= NOTHING_HIDDEN * summary.total_s


def unrepresentative(summary: CommSummary, exposed_s: float) -> float | None:
    """Exposed communication of the profiled steps / `exposed_s`, its mean over all measured steps; None where
    the two agree within `REPRESENTATIVE`."""
    if exposed_s <= 0 or summary.exposed_s <= 0:
        return None
    ratio = summary.exposed_s / exposed_s
    return None if 1 / REPRESENTATIVE <= ratio <= REPRESENTATIVE else ratio
