"""Communication: bandwidth by profiled and by all measured steps, and steps that are unlike the mean."""

from __future__ import annotations

from pathlib import Path

import pytest

from analysis.read.load import load_runs
from analysis.report.sections import communication
from analysis.results import communication as results
from analysis.results.communication import bus_bandwidth
from analysis.study import Study, make_study
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
    assert bus_bandwidth(slow, 0.0) == pytest.approx(BYTES / 0.32)
    assert bus_bandwidth(summary(0.32, hidden_s=0.16), 0.145) == pytest.approx(BYTES / 0.32)
    unknown = slow.model_copy(update={"collectives": [], "bus_bytes_per_s": None})
    assert bus_bandwidth(unknown, 0.145) is None


@pytest.fixture
def study(tmp_path: Path) -> Study:
    """Two configurations on two nodes: four messages half hidden, and one message that is not."""
    for bucket_mb, mean_s, comm in ((4, 0.15, summary(0.04, 0.02, 4)), (32, 0.2, summary(0.08))):
        composition = {"compute_s": mean_s - TRANSFER_S, "comm_wait_s": 0.0, "comm_transfer_s": TRANSFER_S}
        fake_run(
            tmp_path / "s" / f"n2-{bucket_mb}",
            nodes=2,
            mean_s=mean_s,
            overrides={"comm": comm.model_dump(mode="json"), "composition": composition},
            axes={"resources.nodes": 2, "parallel.ddp.bucket_mb": bucket_mb},
        )
    table = load_runs([tmp_path / "s"])
    return make_study(table)


def test_figures_join_profiled_steps_with_all_steps(study: Study) -> None:
    small, large = (curve.points[0] for curve in study.curves)
    rates = [results.mean_bus_rate(point).value for point in (small, large)]
    assert rates == [pytest.approx(BYTES / 0.04), pytest.approx(BYTES / TRANSFER_S, rel=0.02)]
    assert [results.hidden_share(point).value for point in (small, large)] == [0.5, 0.0]
    assert results.unlike_the_mean(small) is None
    assert results.unlike_the_mean(large) == pytest.approx(4.0, rel=0.02)
    assert [results.message_bytes(point).value for point in (small, large)] == [BYTES / 4, BYTES]
    assert results.line_share(small) is results.measured_share(small) is None


def test_the_section_names_hidden_communication_and_profiled_steps_unlike_the_mean(study: Study) -> None:
    section = communication.build(study)
    assert section is not None
    assert "50 % of communication is hidden" in section.conclusion
    assert (
        "4.0\N{MULTIPLICATION SIGN} its exposed communication on bucket_mb 32, 2 ranks." in section.conclusion
    )
    assert [table.name for table in section.tables] == ["communication", "collectives"]
    assert "line_share" not in [column.name for column in section.tables[0].columns], "no line is known"
