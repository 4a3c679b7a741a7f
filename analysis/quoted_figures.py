"""Figures that others report, of unknown conditions: shown beside measured ones, not compared with them."""

from __future__ import annotations

from typing import NamedTuple


class QuotedCommunication(NamedTuple):
    """One row of a table of gradient communication."""

    form: str
    """Its name in that table."""
    gb_per_s: float
    latency_ms: float
    speed_up: float
    """By latency."""


COMMUNICATION = {
    "baseline": QuotedCommunication("baseline", 12.3, 45.2, 1.0),
    "topk": QuotedCommunication("compression", 118.5, 4.7, 9.6),
    "hierarchical": QuotedCommunication("hierarchical", 89.2, 12.1, 3.7),
    "large buckets": QuotedCommunication("bucketing", 34.1, 23.4, 1.9),
}
"""By the name of the form in `disttrain.comm_bench.ddp_steps.FORMS` that resembles it most."""
