"""`--repeats auto:2%`: repeats are added until the interval of each throughput is narrow."""

from __future__ import annotations

import shutil
import stat
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis import comparison
from disttrain.records.json_files import read_json
from disttrain.records.run_directory import RunDir
from jobs.cli.more_repeats import wanted_runs
from jobs.core import journal
from jobs.submission.decide import Action
from tests.support.jobs import FakeScheduler
from tests.support.verbs import RUNS, ask, end

STATE: Any = SimpleNamespace(displayed_state="done")


@given(st.lists(st.tuples(st.integers(0, 9), st.lists(st.booleans(), min_size=8, max_size=8)), max_size=3))
def test_no_point_exceeds_the_limit_and_a_settled_one_gets_none(drawn: list[tuple[int, list[bool]]]) -> None:
    """Each point settles after so many measured repeats; others of its runs fail, and count."""
    points = [[Action("submit", "s", f"{at}-{n}", "new") for n in range(8)] for at in range(len(drawn))]
    for _ in range(8):
        measured = [
            sum(not fails for fails, each in zip(drawn[at][1], point, strict=True) if each.state)
            for at, point in enumerate(points)
        ]
        lacking = {
            f"{at}-{n}": max(0, needed - measured[at])
            for at, (needed, failing) in enumerate(drawn)
            for n, each in enumerate(points[at])
            if each.state and not failing[n]
        }
        before = [sum(each.state is not None for each in point) for point in points]
        counts = [len(point) for point in wanted_runs(points, lacking)]
        for (needed, _), done, was, count in zip(drawn, measured, before, counts, strict=True):
            assert max(3, was) <= count <= 8
            assert count == was or not was or 0 < done < needed
        for point, count in zip(points, counts, strict=True):
            point[:count] = [replace(each, kind="up_to_date", state=STATE) for each in point[:count]]


def finish(*names: str, cause: str = "finished") -> None:
    for name in names:
        end(RunDir(RUNS / "tiny" / name), cause)


def test_the_report_job_adds_what_is_lacking(
    cluster: FakeScheduler, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    needs = {"n1-r0": 0, "n2-r0": 5}
    monkeypatch.setattr(comparison, "repeats_lacking", lambda *_: needs)
    options = "tiny.yaml --nodes 1 2 --repeats auto:2%:4 --note first"
    dry = ask(capsys, f"sweep {options} --dry-run")
    assert "would start 6 of 6, at most 9 CPU rank-hours" in dry
    assert (
        "up to 2 runs follow, until each throughput is within ±2 % or has 4 repeats: with them, at most 12"
        in dry
    )
    assert not RUNS.exists()
    ask(capsys, f"sweep {options}")
    assert [name for name, _ in cluster.submitted] == [f"n{n}-r{r}" for r in range(3) for n in (1, 2)]
    folder = RUNS / "tiny"
    assert read_json(folder / "sweep.json")["repeats"] == {"schema_version": 1, "within": 0.02, "most": 4}
    assert stat.S_IMODE((folder / "added_runs.json").stat().st_mode) == 0o600
    (command,) = read_json(folder / "added_runs.json")["commands"]
    assert command["arguments"] == ["sweep", *options.split()]
    finish("n1-r0", "n1-r1", "n1-r2", "n2-r0", "n2-r1")
    ask(capsys, f"sweep --report-job 0 {options}")
    assert len(cluster.submitted) == 6, "n2-r2 still runs"
    finish("n2-r2", cause="crashed")
    ask(capsys, f"sweep --report-job 1 {options}")
    assert [name for name, _ in cluster.submitted[6:]] == ["n2-r3"], "a failed run counts and is not repeated"
    ask(capsys, f"sweep --report-job 1 {options}")
    assert len(cluster.submitted) == 7, "a report job that starts twice doubles no run"
    finish("n2-r3", cause="crashed")
    ask(capsys, f"sweep --report-job 2 {options}")
    assert len(cluster.submitted) == 7
    assert journal.next_submission(RunDir(folder / ".report")) == 3


def test_no_repeat_is_added_after_a_cancel(
    cluster: FakeScheduler, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even one of the first, which a limit of jobs left for later."""
    monkeypatch.setattr(comparison, "repeats_lacking", lambda *_: {"n1-r0": 5})
    ask(capsys, "sweep tiny.yaml --nodes 1 --repeats auto:2%")
    shutil.rmtree(RUNS / "tiny" / "n1-r1")
    finish("n1-r0")
    finish("n1-r2", cause="cancelled")
    ask(capsys, "sweep --report-job 0 tiny.yaml --nodes 1 --repeats auto:2%")
    assert len(cluster.submitted) == 3


def test_a_looser_rule_replaces_the_former_one(
    cluster: FakeScheduler, capsys: pytest.CaptureFixture[str]
) -> None:
    for rule in ("auto:1%", "auto:5%"):
        ask(capsys, f"sweep tiny.yaml --nodes 1 --repeats {rule}")
    (command,) = read_json(RUNS / "tiny" / "added_runs.json")["commands"]
    assert command["arguments"][-1] == "auto:5%"
