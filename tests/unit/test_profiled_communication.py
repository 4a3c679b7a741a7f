"""Bus bandwidth by profiled and by all measured steps, and profiled steps that are unlike the mean."""

from __future__ import annotations

from pathlib import Path

import pytest

from analysis.efficiency import scaling_curves
from analysis.profiled_communication import bus_bandwidth, unrepresentative
from analysis.read.frames import load
from analysis.report.sections import communication
from analysis.stats.estimates import Estimate
from analysis.study import Study
from disttrain.records.communication import CollectiveSummary, CommSummary
from tests.support.fake_runs import fake_run

BYTES = 16 * 2**20
TRANSFER_S = 0.02
"""Exposed transfer of the mean step."""


def summary(duration_s: float, hidden_s: float = 0.0, messages: int = 1) -> CommSummary:
    """Profiled steps with `messages` all-reduces of two ranks, one after the other."""
    rate = BYTES / duration_s
    each = CollectiveSummary(
        kind="all_reduce",
        bucket=0,
        bytes=BYTES // messages,
        total_s=duration_s / messages,
        hidden_s=hidden_s / messages,
        exposed_s=(duration_s - hidden_s) / messages,
        transfer_s=duration_s / messages,
        algorithm_bytes_per_s=rate,
        bus_bytes_per_s=rate,
    )
    return CommSummary(
        method="profiler_samples",
        sampled_steps=1,
        count=messages,
        bytes=BYTES,
        total_s=duration_s,
        hidden_s=hidden_s,
        exposed_s=duration_s - hidden_s,
        compute_s=0.2,
        bus_bytes_per_s=rate,
        collectives=[each] * messages,
    )


def test_bandwidth_is_that_of_all_steps_where_nothing_is_hidden() -> None:
    slow = summary(0.32)
    assert bus_bandwidth(slow, 0.145) == pytest.approx(BYTES / 0.145)
    assert bus_bandwidth(summary(0.32, messages=4), 0.145) == pytest.approx(BYTES / 0.145)
    assert bus_bandwidth(slow, None) == pytest.approx(BYTES / 0.32)
    hidden = summary(0.32, hidden_s=0.16)
    assert bus_bandwidth(hidden, 0.145) == pytest.approx(BYTES / 0.32)
    unknown = slow.model_copy(update={"collectives": [], "bus_bytes_per_s": None})
    assert bus_bandwidth(unknown, 0.145) is None


def test_profiled_steps_far_from_the_mean_are_not_representative() -> None:
    assert unrepresentative(summary(0.32), 0.145) == pytest.approx(0.32 / 0.145)
    assert unrepresentative(summary(0.1), 0.145) == pytest.approx(0.1 / 0.145)
    assert unrepresentative(summary(0.15), 0.145) is None
    assert unrepresentative(summary(0.15), 0.0) is None


def section_text(tmp_path: Path) -> tuple[str, str, list[float]]:
    """Conclusion, caption of the collectives and bus bandwidths of two configurations on two nodes."""
    for bucket_mb, mean_s, comm in ((4, 0.15, summary(0.04, 0.02, 4)), (32, 0.2, summary(0.08))):
        fake_run(
            tmp_path / "s" / f"n2-{bucket_mb}",
            nodes=2,
            mean_s=mean_s,
            overrides={
                "comm": comm.model_dump(mode="json"),
                "composition": {
                    "compute_s": mean_s - TRANSFER_S,
                    "comm_wait_s": 0.0,
                    "comm_transfer_s": TRANSFER_S,
                },
            },
            axes={"resources.nodes": 2, "parallel.ddp.bucket_mb": bucket_mb},
        )
    table = load([tmp_path / "s"])
    study = Study(table, scaling_curves(table))
    section = communication.build(study)
    assert section is not None
    first, collectives = section.tables
    at = [column.name for column in first.columns].index("bus_bytes_per_s")
    rates = [row[at] for row in first.rows]
    return (
        section.conclusion,
        collectives.caption,
        [each.value for each in rates if isinstance(each, Estimate)],
    )


def test_hidden_shares_are_of_the_profiled_steps_and_one_message_is_the_reason(tmp_path: Path) -> None:
    conclusion, caption, rates = section_text(tmp_path)
    assert rates == [pytest.approx(BYTES / 0.04), pytest.approx(BYTES / TRANSFER_S)]
    assert " in 1 profiled step, 50.0 % " in conclusion
    assert conclusion.endswith(
        "At this size, bucket_mb 32 hides 0 %: a step of bucket_mb 32 has one message, which cannot start "
        "before the last gradient is ready."
    )
    assert caption.endswith(
        "is not that of the mean step: 4.0\N{MULTIPLICATION SIGN} on bucket_mb 32, 2 nodes. Their rows are "
        "not representative."
    )
