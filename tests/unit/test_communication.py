"""Communication: bandwidth by profiled and by all measured steps, and steps that are unlike the mean."""

from __future__ import annotations

from typing import Any

import pytest

from analysis.report.sections.network import communication
from analysis.results import communication as results
from analysis.results.curves import Point
from analysis.results.phases import TRANSFER, WAIT
from analysis.study import Study, make_study
from disttrain.records.communication import CollectiveSummary, CommSummary
from tests.support.studies import BUCKET, attempt_of, run_of

BYTES = 16 * 2**20
TRANSFER_S = 0.02
"""Exposed transfer of the mean step."""


def summary(total_s: float, hidden_s: float = 0.0, messages: int = 1) -> CommSummary:
    """Profiled steps with `messages` all-reduces of two ranks, one after the other."""
    rate = BYTES / total_s
    seconds = {"total_s": total_s, "hidden_s": hidden_s, "exposed_s": total_s - hidden_s}
    each = CollectiveSummary(
        kind="all_reduce",
        bucket=0,
        bytes=BYTES // messages,
        transfer_s=total_s / messages,
        algorithm_bytes_per_s=rate,
        bus_bytes_per_s=rate,
        **{name: value / messages for name, value in seconds.items()},
    )
    return CommSummary(
        method="profiler_samples",
        sampled_steps=1,
        count=messages,
        bytes=BYTES,
        compute_s=0.2,
        bus_bytes_per_s=rate,
        collectives=[each] * messages,
        **seconds,
    )


def study_of(*sizes: tuple[int, CommSummary | None], **fields: Any) -> Study:
    """Two nodes with each of these bucket sizes."""
    metrics = {"composition": {"compute_s": 0.18, WAIT: 0.0, TRANSFER: TRANSFER_S}}
    runs = [
        run_of(2, mean_s=0.2, axes={BUCKET: size}, metrics=metrics | {"comm": comm}, **fields)
        for size, comm in sizes
    ]
    return make_study(runs)


def point_of(comm: CommSummary | None, **fields: Any) -> Point:
    return study_of((4, comm), **fields).curves[0].points[0]


UNKNOWN = summary(0.32).model_copy(update={"collectives": [], "bus_bytes_per_s": None})


@pytest.mark.parametrize(
    ("comm", "bytes_per_s"),
    [
        (summary(0.32), BYTES / TRANSFER_S),  # that of all steps where nothing is hidden
        (summary(0.32, messages=4), BYTES / TRANSFER_S),
        (summary(0.32, hidden_s=0.006), BYTES / TRANSFER_S),
        (summary(0.32, hidden_s=0.16), BYTES / 0.32),
        (UNKNOWN, None),
        (None, None),
    ],
)
def test_bandwidth_is_that_of_all_steps_where_nothing_is_hidden(comm, bytes_per_s) -> None:
    rate = results.mean_bus_rate(point_of(comm))
    assert (rate and rate.value) == (bytes_per_s and pytest.approx(bytes_per_s))
    assert results.bus_bandwidth(summary(0.32), 0.0) == BYTES / 0.32


@pytest.mark.parametrize(
    ("comm", "hidden", "message", "unlike"),
    [
        (summary(0.04, 0.02, 4), 0.5, BYTES / 4, None),
        (summary(0.08), 0.0, BYTES, 4.0),
        (summary(0.012), 0.0, BYTES, 0.6),
        (None, None, None, None),
    ],
)
def test_figures_of_profiled_steps(comm, hidden, message, unlike) -> None:
    point = point_of(comm)
    found = (results.hidden_share(point), results.message_bytes(point))
    assert tuple(each and each.value for each in found) == (hidden, message)
    assert results.unlike_the_mean(point) == (unlike and pytest.approx(unlike))


def test_bandwidth_is_compared_with_the_line_and_the_slowest_measured_link() -> None:
    rates = {("a", "b"): 4e9, ("b", "a"): 2e9}
    attempt = attempt_of("a", "b", line_rate_bytes_per_s=8e9, link_rates=rates)
    point = point_of(summary(TRANSFER_S), attempts=(attempt,))
    bus = BYTES / TRANSFER_S
    shares = results.line_share(point), results.measured_share(point)
    assert [each.value for each in shares] == pytest.approx([bus / 8e9, bus / 2e9])
    alone = point_of(summary(TRANSFER_S))
    assert results.line_share(alone) is results.measured_share(alone) is None
    one_node = run_of(1, 2, metrics={"comm": summary(TRANSFER_S)}, attempts=(attempt,))
    assert results.line_share(make_study([one_node]).curves[0].points[0]) is None


def test_the_section_names_hidden_communication_and_profiled_steps_unlike_the_mean() -> None:
    section = communication(study_of((4, summary(0.04, 0.02, 4)), (32, summary(0.08))))
    assert section is not None
    assert (
        "4.0\N{MULTIPLICATION SIGN} its exposed communication on bucket_mb 32, 2 ranks." in section.conclusion
    )
    assert [table.name for table in section.tables] == ["communication", "collectives"]
    assert "line_share" not in [column.name for column in section.tables[0].columns], "no line is known"
