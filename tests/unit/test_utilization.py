"""Samples of GPUs and processes, joined to the steps that they fell in."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis.read.load import load_runs
from analysis.read.samples import step_at, utilization_by_step
from analysis.report.sections import utilization as section_of_utilization
from analysis.study import make_study
from disttrain.records.json_files import write_text
from disttrain.records.run_directory import RunDir
from tests.support.fake_runs import fake_run


def step_of(at_s: list[float], records: list[dict]) -> np.ndarray:
    names = [("start_s", np.nan), ("step_s", np.nan), ("step", np.nan), ("steps", 1)]
    rows = [[each.get(name, absent) for each in records] for name, absent in names]
    rows[2] = [each.get("first", step) for each, step in zip(records, rows[2], strict=True)]
    return step_at(at_s, *np.array(rows, dtype=float))


SPAN = st.floats(0.01, 100)


@given(st.lists(st.tuples(SPAN, st.none() | SPAN, st.floats(0, 0.99)), min_size=1, max_size=50))
def test_a_sample_belongs_to_the_step_it_fell_in_and_one_in_a_pause_to_none(steps) -> None:
    """After some steps there is a pause, as for a validation."""
    now, lines, inside, between = 0.0, [], [], []
    for number, (step_s, pause_s, share) in enumerate(steps, 7):
        lines.append({"step": number, "start_s": now, "step_s": step_s})
        inside.append(now + share * step_s)
        now += step_s
        if pause_s:
            between.append(now + 0.5 * pause_s)
            now += pause_s
    assert list(step_of(inside, lines[::-1])) == list(range(7, 7 + len(steps)))
    assert np.isnan(step_of([-1.0, *between, now], lines)).all()


def test_a_sample_in_a_line_of_many_steps_is_placed_among_them() -> None:
    before = {"first": 96, "last": 100, "steps": 5, "start_s": None, "step_s": 5.0}  # of an earlier attempt
    window = {"first": 101, "last": 104, "steps": 4, "start_s": 20.0, "step_s": 8.0}
    profiled = {"step": 105, "start_s": 28.0, "step_s": 9.0}
    found = step_of([1.0, 20.0, 23.5, 27.99, 28.0, 36.9, 37.0], [before, window, profiled])
    assert list(found[1:6]) == [101, 102, 104, 105, 105]
    assert np.isnan(found[[0, 6]]).all()
    assert np.isnan(step_of([1.0], [before])).all()


def write_lines(path: Path, lines: list[dict]) -> None:
    write_text(path, "".join(f"{json.dumps(line)}\n" for line in lines))


def test_over_attempts_only_samples_in_steps_that_were_kept_count(tmp_path: Path) -> None:
    """Attempt 0 was killed after step 10, and attempt 1 went on from 5; each step took a second."""
    run: RunDir = fake_run(tmp_path / "s" / "run")
    for attempt, (first, last, cpu_percent) in enumerate([(1, 10, 100.0), (6, 12, 300.0)]):
        steps = range(first, last + 1)
        made = run.attempt(attempt)
        write_lines(made.steps(0), [{"step": s, "start_s": s - first, "step_s": 1.0} for s in steps])
        samples = [
            {
                "rank": rank,
                "at_s": s - first + 0.5,
                "cpu_percent": None if s == 1 else (rank + 1) * cpu_percent,
            }
            for s in steps
            for rank in (0, 1)
        ]
        write_lines(made.host_samples(0), samples)
    metrics = json.loads(run.metrics.read_text())
    run.metrics.write_text(json.dumps(metrics | {"attempt": 1}))
    found = utilization(tmp_path / "s")
    assert found == {"processors": (list(range(2, 13)), pytest.approx([1.0] * 4 + [3.0] * 7))}


def utilization(sweep: Path) -> dict[str, tuple[list[float], list[float]]]:
    """Steps and utilization of the one run of a sweep, by kind of device."""
    (run,) = load_runs([sweep])
    return {device: (steps, values) for device, (steps, values) in utilization_by_step(run.samples).items()}


def sampled(path: Path, steps: int) -> RunDir:
    """A run with one sample in each step of a second; as many processors are busy as the step's number."""
    run: RunDir = fake_run(path, steps=steps, mean_s=1.0)
    attempt = run.attempt(0)
    numbers = range(1, steps + 1)
    write_lines(attempt.steps(0), [{"step": s, "start_s": s - 1, "step_s": 1.0} for s in numbers])
    samples = [{"rank": 0, "at_s": s - 0.5, "cpu_percent": 100.0 * s} for s in numbers]
    write_lines(attempt.host_samples(0), samples)
    return run


def test_steps_are_averaged_in_at_most_sixty_segments_of_equal_length(tmp_path: Path) -> None:
    """121 steps make segments of three, of which the last has one."""
    sampled(tmp_path / "s" / "run", 121)
    found = utilization(tmp_path / "s")
    assert found["processors"] == ([*range(2, 120, 3), 121], pytest.approx([*range(2, 120, 3), 121]))


@pytest.mark.parametrize(("steps", "drawn"), [(5, True), (4, False)])
def test_a_run_with_few_samples_is_not_drawn(tmp_path: Path, steps: int, drawn: bool) -> None:
    sampled(tmp_path / "s" / "run", steps)
    assert bool(utilization(tmp_path / "s")) is drawn


def test_damaged_lines_are_left_out_and_damaged_samples_are_none(tmp_path: Path) -> None:
    run = sampled(tmp_path / "s" / "run", 9)
    for path in (run.attempt(0).steps(0), run.attempt(0).host_samples(0)):
        lines = path.read_text().splitlines()
        path.write_text("\n".join([*lines[:8], "{", *lines[8:]]) + "\n")
    assert utilization(tmp_path / "s")["processors"][0] == list(range(1, 10))
    write_lines(run.attempt(0).host_samples(0), [{"rank": 0, "cpu_percent": 100.0}] * 9)
    assert not utilization(tmp_path / "s")


def test_a_long_run_is_thinned_and_one_without_samples_is_left_out(tmp_path: Path) -> None:
    run = fake_run(tmp_path / "s" / "run", steps=1100)
    found = utilization(tmp_path / "s")
    steps, _ = found["processors"]
    assert 30 < len(steps) <= 60
    assert steps == sorted(steps)
    run.attempt(0).host_samples(0).unlink()
    assert not utilization(tmp_path / "s")


def test_sentences_on_utilization_have_the_means_of_the_table(tmp_path: Path) -> None:
    """The figure has other samples: rank 0 alone, by segments of steps."""
    for nodes in (1, 2):
        process = {"ranks": nodes, "samples": 9, "cpu_percent": 37.2 * nodes, "rss_peak_bytes": 1}
        process |= {"threads_max": 4, "host_memory_used_peak": 0.2}
        fake_run(tmp_path / "s" / f"n{nodes}", nodes=nodes, overrides={"processes": process})
    table = load_runs([tmp_path / "s"])
    section = section_of_utilization.build(make_study(table))
    assert section is not None
    assert [row[-1].value for row in section.tables[0].rows] == pytest.approx([0.372, 0.744])
    assert section.conclusion.startswith("The process of a rank kept 0.372 to 0.744 processors busy")
