"""Time at which ranks stop before the job's time limit. Standard library only, as agents use it too."""

from __future__ import annotations

from collections.abc import Mapping

DEADLINE_VARIABLES = ("DISTTRAIN_DEADLINE", "SLURM_JOB_END_TIME")
"""Environment variables with the end of the job, in seconds since the epoch; the first one set counts."""


def lead_within(left_s: float, lead_s: float) -> float:
    """Seconds before its end at which a job with `left_s` seconds left stops: `lead_s`.

    If no more time than `lead_s` is left, the job trains for three quarters of it.
    """
    return lead_s if lead_s < left_s else max(0.0, left_s) / 4


def stop_time(environment: Mapping[str, str], lead_s: float, now: float) -> float | None:
    """Time to stop, in seconds since the epoch; None without a readable time limit."""
    for name in DEADLINE_VARIABLES:
        try:
            end = float(environment[name])
        except (KeyError, ValueError):
            continue
        return end - lead_within(end - now, lead_s)
    return None
