"""Run directories as runs: every way to be incomplete or impossible, and the choice of measured steps."""

from __future__ import annotations

import gc
import json
import math
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from analysis.read.axes import swept_values
from analysis.read.load import KnownState, load_runs
from analysis.read.run import Run
from analysis.report.model import document
from analysis.report.render import markdown
from analysis.report.sections import build_all
from analysis.results.curves import scaling_curves
from analysis.step_statistics import step_statistics
from analysis.study import make_study
from disttrain.errors import ConfigError
from disttrain.records.json_files import read_json, read_jsonl, write_json
from disttrain.records.run_directory import RunDir
from disttrain.records.steps import PHASES
from tests.support.fake_runs import WHEN, edit, fake_run, write_lines

HUGE = 10**400
PROCESSES = {
    "ranks": 1, "samples": 9, "cpu_percent": 95.0, "rss_peak_bytes": 1, "threads_max": 4,
    "host_memory_used_peak": 0.2,
}  # fmt: skip
UNMEASURED = {"measured_steps": 0, "measured_s": None, "samples_per_s": None, "steps": 5}
IMPOSSIBLE = "step records are impossible"
UNFIT = "finished, but metrics.json does not fit its schema"
NEWER = "finished, but metrics.json has schema version 7"


def only(sweep: Path, **options: Any) -> Run:
    (run,) = load_runs([sweep], **options)
    return run


def metrics(**fields: Any) -> Callable[[RunDir], None]:
    return lambda run: edit(run.metrics, **fields)


def config(**sections: Any) -> Callable[[RunDir], None]:
    return lambda run: edit(run.run_json, config=sections)


def text(file: str, content: bytes) -> Callable[[RunDir], object]:
    return lambda run: (run.path / file).write_bytes(content)


def step(**fields: float) -> Callable[[RunDir], None]:
    """Other values in step 20."""

    def change(run: RunDir) -> None:
        records = list(read_jsonl(run.attempt(0).steps(0)))
        records[19] |= fields
        write_lines(run.attempt(0).steps(0), records)

    return change


def ended(cause: str, **fields: Any) -> Callable[[RunDir], None]:
    outcome = {"cause": cause, "attempt": 0, "ended": WHEN, "retryable": False}
    return lambda run: (run.done.unlink(), write_json(run.failed, outcome | fields))  # type: ignore[return-value]


def unfinished(status: str, **fields: Any) -> Callable[[RunDir], None]:
    return lambda run: (run.done.unlink(), edit(run.metrics, status=status, **fields))  # type: ignore[return-value]


def both(*changes: Callable[[RunDir], object]) -> Callable[[RunDir], object]:
    return lambda run: [change(run) for change in changes]


def slower_twin(run: RunDir) -> None:
    """Steps of 0.2 s with metrics of steps of 0.1 s."""
    fake_run(run.path.parents[1] / "t" / "run", mean_s=0.2).attempt(0).steps(0).rename(
        run.attempt(0).steps(0)
    )


@pytest.mark.parametrize(
    ("change", "state", "note"),
    [
        (ended("cancelled"), "cancelled", "cancelled"),
        (ended("out_of_memory", message="rank 1"), "failed", "out of memory: rank 1"),
        (both(ended("crashed"), lambda run: run.failed.write_text("{")), "failed", "failed"),
        (unfinished("running", steps=55), "running", "not finished: step 55 of 110 at the last update, 2026"),
        (unfinished("stopped", stop_cause="deadline", steps=55), "failed", "deadline at step 55 of 110"),
        (unfinished("stopped", stop_cause="stopped"), "stopped", "stopped at step"),
        (metrics(**UNMEASURED), "done", "no measured steps: all 5 were warm-up"),
        (lambda run: run.metrics.unlink(), "done", "finished, but metrics.json is missing"),
        (text("metrics.json", b""), "done", "finished, but metrics.json cannot be read"),
        (text("metrics.json", b"[]"), "done", "finished, but metrics.json cannot be read"),
        (text("metrics.json", b"\xff"), "done", "finished, but metrics.json cannot be read"),
        (text("metrics.json", b'{"name": "r"}'), "done", f"{UNFIT}: sweep"),
        (metrics(steps="110"), "done", f"{UNFIT}: steps"),
        (metrics(steps=True), "done", f"{UNFIT}: steps"),
        (metrics(loss_history=[{"step": "x"}]), "done", f"{UNFIT}: a curve"),
        (metrics(schema_version=7, future=1), "done", NEWER),
        (both(metrics(schema_version=7), config(command=["train.py"])), "done", NEWER),
        (lambda run: run.run_json.unlink(), "done", "run.json is missing"),
        (text("run.json", b"{"), "done", "run.json cannot be read"),
        (config(resources={"nodes": 0}), "done", "run.json has an impossible value: resources.nodes is 0"),
        (config(train={"steps": -1}), "done", "run.json has an impossible value: train.steps is -1"),
        (config(model={"kind": 3}), "done", "run.json has an impossible value: model.kind is 3"),
        (step(compute_s=0.5), "done", f"{IMPOSSIBLE}: phases do not sum to step_s in step 20 of rank 0"),
        (step(step_s=-1.0), "done", f"{IMPOSSIBLE}: step_s is -1 in step 20 of rank 0"),
        (step(input_s=1e13), "done", f"{IMPOSSIBLE}: input_s is 1e+13 in step 20 of rank 0"),
        (slower_twin, "done", f"{IMPOSSIBLE}: the mean measured step is 0.2"),
    ],
)  # fmt: skip
def test_an_incomplete_or_impossible_run_is_listed_with_its_reason_and_left_out(
    tmp_path: Path, change: Callable[[RunDir], object], state: str, note: str
) -> None:
    change(fake_run(tmp_path / "s" / "run"))
    fake_run(tmp_path / "s" / "whole")
    run, whole = load_runs([tmp_path / "s"])
    if run.name != "run":
        run, whole = whole, run
    assert (run.state, run.included, whole.included) == (state, False, True)
    assert run.note.startswith(note)
    assert [point.paths for curve in scaling_curves([run, whole]) for point in curve.points] == [{whole.path}]


@pytest.mark.parametrize(
    ("fields", "note"),
    [
        *(({name: value}, name) for name in ("samples_per_s", "measured_s", "nodes") for value in (-1, 1e13)),
        ({"world_size": 0}, "world_size is 0"),
        ({"samples_per_s": math.nan}, "metrics.json"),
        ({"measured_s": math.inf}, "metrics.json"),
        ({"global_batch_size": HUGE}, "metrics.json"),
        ({"step_time": {"p50_s": -1}}, "step_time.p50_s is -1"),
        ({"step_time": {"p50_s": 9.0}}, "step_time has"),
        ({"composition": {"compute_s": -1}}, "composition.compute_s is -1"),
        ({"processes": PROCESSES | {"cpu_percent": -5.0}}, "processes.cpu_percent is -5"),
        ({"nodes": 2}, "nodes is 2, and that of run.json 1"),
        ({"world_size": 2}, "world_size is 2"),
        ({"samples_per_s": 7e5}, "samples_per_s is 700000, and global_batch_size / step"),
        ({"measured_steps": 1}, "global_batch_size / step"),
        ({"step_time": {"mean_s": 0.12}}, "step_time.mean_s is 0.12"),
        ({"composition": {"compute_s": 0.2}}, "the sum of composition is"),
        # four ranks with a local batch of 8 and gradients of one, two or four replicas
        ({"global_batch_size": 4, "samples_per_s": 40}, "global_batch_size is 4"),
        *(({"global_batch_size": batch, "samples_per_s": 10 * batch}, "") for batch in (8, 32)),
        ({"global_batch_size": 64, "samples_per_s": 640}, "global_batch_size is 64"),
        ({"peak_memory_bytes": 10**15}, ""),
        ({"samples_per_s": None, "measured_s": None, "measured_steps": 0}, "no measured steps"),
    ],
)
def test_metrics_that_no_run_can_have_or_that_contradict_each_other_set_it_aside(
    tmp_path: Path, fields: dict[str, Any], note: str
) -> None:
    nodes = 4 if "global_batch_size" in fields else 1
    edit(fake_run(tmp_path / "s" / "run", nodes=nodes).metrics, **fields)
    run = only(tmp_path / "s")
    assert run.included == (note == "")
    assert note in run.note


def test_no_corrupt_value_of_a_record_ends_the_study(tmp_path: Path) -> None:
    """Records, step records and samples: the other run counts, and no figure of either changes unsaid."""

    def places(content: Any, before: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
        if isinstance(content, dict | list) and content:
            for key in content if isinstance(content, dict) else [len(content) - 1]:
                yield from places(content[key], (*before, key))
        else:
            yield before

    def figures() -> dict[str, list[float]]:
        study = make_study(load_runs([tmp_path / "s"]))
        sections = build_all(study)
        assert markdown(document(study, sections, ""), sections)
        names = ("samples_per_s", "measured_s", "nodes", "world_size", "global_batch_size")
        return {run.path: [float(getattr(run.metrics, name)) for name in names] for run in study.included}

    for nodes in (1, 2):
        fake_run(tmp_path / "s" / f"n{nodes}", nodes=nodes, steps=40, all_ranks=True)
    truth, files = figures(), sorted((tmp_path / "s").glob("*/**/*.json*"))
    choose = random.Random(2)
    for _ in range(30):
        path = choose.choice(files)
        content = path.read_text()
        lines = content.splitlines() if path.suffix == ".jsonl" else [content]
        line = choose.randrange(len(lines))
        record = holder = json.loads(lines[line])
        *outer, last = choose.choice([*places(record)])
        for key in outer:
            holder = holder[key]
        holder[last] = choose.choice([math.nan, math.inf, 0, -1, 1e13, HUGE, "x", None, [], {}, True])
        lines[line] = json.dumps(record)
        path.write_text("\n".join(lines) + "\n")
        included = figures()
        path.write_text(content)
        assert {run for run in truth if not str(path).startswith(run)} <= {*included}
        assert all(np.allclose(values, truth[run], rtol=0.1) for run, values in included.items())


def test_planned_and_started_runs_have_no_metrics_and_no_runs_are_refused(
    tmp_path: Path,
) -> None:
    planned = fake_run(tmp_path / "s" / "planned", nodes=2, end="planned")
    started = fake_run(tmp_path / "s" / "started", end="running")
    started.metrics.unlink()
    found = {run.name: (run.state, run.note, run.included) for run in load_runs([tmp_path / "s"])}
    assert found == {
        "planned": ("planned", "not started", False),
        "started": ("started", "no metrics yet", False),
    }
    assert load_runs([tmp_path / "s"], only=[planned.path])[0].shape == (2, 1)
    edit(planned.run_json, config={"parallel": {"strategy": "dp"}, "resources": {"gpus_per_node": 4}})
    (one_rank,) = load_runs([tmp_path / "s"], only=[planned.path])
    assert (one_rank.shape, one_rank.devices) == ((2, 1), 8)
    for folder, message in (("absent", "no such folder"), ("", "no runs in")):
        with pytest.raises(ConfigError, match=message):
            load_runs([tmp_path / folder])
    assert gc.isenabled()


def test_what_a_scheduler_knows_counts_before_the_files_but_not_before_a_recorded_failure(
    tmp_path: Path,
) -> None:
    names = {"done": {}, "failed": {"end": "failed", "message": "boom"}, "started": {"end": "running"}}
    for name, options in names.items():
        fake_run(tmp_path / "s" / name, **options)
    usage = load_runs([tmp_path / "s"])[0].usage.model_copy(update={"hours": 5.0})
    states = {tmp_path / "s" / name: KnownState("lost", "the job is gone", 7, usage) for name in names}
    found = {run.name: run for run in load_runs([tmp_path / "s"], states)}
    assert {run.usage.hours for run in found.values()} == {5.0}
    assert {(run.state, run.starts) for run in found.values()} == {("lost", 7)}
    notes = {name: run.note.split(";")[0] for name, run in found.items()}
    assert notes == {"done": "", "failed": "crashed: boom", "started": "the job is gone"}


def test_annotations_are_those_of_the_run_and_its_sweep(tmp_path: Path) -> None:
    for name in "ab":
        fake_run(tmp_path / "s" / name)
    write_json(tmp_path / "s" / "annotation.json", {"tags": ["x", "a"], "note": "of all"})
    write_json(tmp_path / "s" / "b" / "annotation.json", {"tags": ["c"], "note": "of b"})
    assert [(run.tags, run.user_note) for run in load_runs([tmp_path / "s"])] == [
        ("a x", "of all"),
        ("a c x", "of b"),
    ]


def test_a_script_of_ones_own_without_telemetry_has_the_figures_that_it_reports(tmp_path: Path) -> None:
    run = fake_run(tmp_path / "s" / "run")
    edit(run.run_json, config={"command": ["python", "train.py"]})
    write_json(run.metrics, {"samples_per_s": 7.5, "loss": 1.0})
    found = only(tmp_path / "s")
    assert (found.own_script, found.note, found.included) == (True, "a script without telemetry", False)
    assert found.reported == {"samples_per_s": 7.5, "loss": 1.0}


def test_fields_of_newer_versions_are_not_read_and_lost_losses_are_missing(tmp_path: Path) -> None:
    run = fake_run(tmp_path / "s" / "run")
    losses = read_json(run.metrics)["loss_history"]
    losses[3]["loss"] = None
    edit(run.metrics, future=1, step_time={"skew": 0.5}, loss_history=losses)
    found = only(tmp_path / "s")
    assert (found.included, found.note) == (True, "")
    assert [each.step for each in found.curves["loss_history"] if each.loss is None] == [4]
    assert found.final["train_loss"] == losses[-1]["loss"]
    assert found.final["bits_per_byte"] == pytest.approx(found.final["valid_loss"] / math.log(2))


def test_the_axes_are_the_swept_keys_or_what_runs_started_by_hand_differ_in(tmp_path: Path) -> None:
    fake_run(tmp_path / "s" / "old", nodes=1)
    fake_run(tmp_path / "s" / "new", nodes=1, axes={"optim.lr": 0.5})
    swept = swept_values(load_runs([tmp_path / "s"]))
    assert {Path(path).name: values["optim.lr"] for path, values in swept.items()} == {
        "old": 1e-3,
        "new": 0.5,
    }
    for name, batch, every in (("a", 4, 10), ("b", 32, 10), ("c", 32, 99)):
        run = fake_run(tmp_path / "by-hand" / name, nodes=1, local_batch_size=batch)
        record = read_json(run.run_json)
        record["config"]["train"]["log_every"] = every  # excluded from the key
        write_json(run.run_json, record | {"axes": {}})
    by_hand = swept_values(load_runs([tmp_path / "by-hand"]))
    assert [*by_hand.values()] == [{"train.local_batch_size": batch} for batch in (4, 32, 32)]


def test_a_longer_warm_up_is_proposed_and_left_out_only_as_asked(tmp_path: Path) -> None:
    sweep, share = tmp_path / "s", {"communication_overhead_percent": 10.0}
    run = fake_run(
        sweep / "run", nodes=2, all_ranks=True, overrides=share, times=lambda step: 1 + (step <= 40)
    )
    (statistics,) = step_statistics([only(sweep)]).values()
    assert statistics.warmup == 40
    recorded = only(sweep).metrics
    assert recorded == only(sweep, warmup=5).metrics, "the recorded warm-up is longer"
    assert recorded.measured_s == read_json(run.metrics)["measured_s"]
    found = only(sweep, warmup=40)
    later = [each for each in read_jsonl(run.attempt(0).steps(0)) if each["step"] > 40]
    later_s = np.array([each["step_s"] for each in later])
    exposed_s = sum(each["comm_exposed_s"] for each in later)
    figures = found.metrics
    assert (figures.measured_steps, figures.warmup_steps) == (70, 40)
    assert figures.measured_s == pytest.approx(later_s.sum())
    assert figures.samples_per_s == pytest.approx(16 * 70 / later_s.sum())
    assert figures.composition["compute_s"] == pytest.approx(np.mean([each["compute_s"] for each in later]))
    assert figures.step_time.p95_s == pytest.approx(np.percentile(later_s, 95))
    assert figures.communication_overhead_percent == pytest.approx(100 * exposed_s / later_s.sum())
    (statistics,) = step_statistics([found]).values()
    assert (statistics.stationarity.verdict, statistics.warmup) == ("stationary", 0)


def test_throughput_after_a_longer_warm_up_is_that_of_the_samples_where_they_are_recorded(
    tmp_path: Path,
) -> None:
    """The batch of a training loop of the user doubles after step 60."""
    run = fake_run(tmp_path / "s" / "run")
    records = list(read_jsonl(run.attempt(0).steps(0)))
    write_lines(
        run.attempt(0).steps(0), [each | {"samples": 8 if each["step"] <= 60 else 16} for each in records]
    )
    before, after = (only(tmp_path / "s", warmup=warmup).metrics for warmup in (0, 60))
    scale = (50 * 16) / (50 * 8 + 50 * 16) * before.measured_s / after.measured_s
    assert after.samples_per_s == pytest.approx(before.samples_per_s * scale)


def test_a_warm_up_that_leaves_no_step_leaves_the_run_out_or_is_refused(tmp_path: Path) -> None:
    fake_run(tmp_path / "s" / "long")
    fake_run(tmp_path / "s" / "short", steps=40)
    long, short = load_runs([tmp_path / "s"], warmup=50)
    assert (long.included, short.included) == (True, False)
    assert short.note == "--warmup leaves none of its 30 measured steps"
    for warmup, message in ((110, "110 leaves no step: the longest run has 110"), (-1, "0 or greater")):
        with pytest.raises(ConfigError, match=message):
            load_runs([tmp_path / "s"], warmup=warmup)


def test_the_proposed_warm_up_counts_the_profiled_steps_in_it(tmp_path: Path) -> None:
    """Ten steps are profiled, so that thirty measured steps end at step 50."""
    fake_run(tmp_path / "s" / "run", left_out=[(1, 10), (15, 24)], times=lambda step: 1 + (step <= 50))
    (statistics,) = step_statistics([only(tmp_path / "s")]).values()
    assert statistics.warmup == 50


@pytest.mark.parametrize("damage", ["missing", "corrupt", "truncated"])
def test_step_times_without_readable_records_are_those_of_the_histogram(tmp_path: Path, damage: str) -> None:
    run = fake_run(tmp_path / "s" / "run")
    path = run.attempt(0).steps(0)
    lines = path.read_text()
    path.unlink()
    if damage != "missing":
        path.write_text("not json\n" if damage == "corrupt" else lines + '{"step": 111, "step_s"')
    times = only(tmp_path / "s").step_durations_s
    assert times.size == 100
    rel = 0.1 if damage != "truncated" else 1e-9
    assert times.sum() == pytest.approx(read_json(run.metrics)["measured_s"], rel=rel)


def test_phases_of_steps_sum_to_their_measured_time(tmp_path: Path) -> None:
    fake_run(tmp_path / "s" / "run", nodes=2, all_ranks=True)
    steps = only(tmp_path / "s").steps
    assert np.nansum([steps.total(name) for name in PHASES]) == pytest.approx(steps.total("step_s"))


def test_analysis_imports_neither_torch_nor_jobs() -> None:
    code = (
        "import sys, analysis.report, analysis.read.load, analysis.draw.style;"
        "sys.exit(any(name in sys.modules for name in ('torch', 'jobs', 'matplotlib.pyplot')))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
