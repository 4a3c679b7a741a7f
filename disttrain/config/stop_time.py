"""When a job's time is up, and how long before that its ranks stop. Standard library only: for agents too."""

from __future__ import annotations

from collections.abc import Mapping

VARIABLES = ("DISTTRAIN_DEADLINE", "SLURM_JOB_END_TIME")
"""When the job's time is up, in seconds since the epoch; the first one that is set counts."""


def lead_within(left_s: float, lead_s: float) -> float:
    """Seconds before its end at which a job stops that has `left_s` of its time: `lead_s`.

    A job with no more time than that trains through three quarters of it all the same.
    """
    return lead_s if lead_s < left_s else max(0.0, left_s) / 4


def stop_time(environment: Mapping[str, str], lead_s: float, now: float) -> float | None:
    """When to stop, in seconds since the epoch. None: there is no limit, or none that can be read."""
    for name in VARIABLES:
        try:
            end = float(environment[name])
        except (KeyError, ValueError):
            continue
        return end - lead_within(end - now, lead_s)
    return None
