"""Run directories as a table: complete ones, and every way to be incomplete."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from analysis.read.attempts import read_attempts
from analysis.read.frames import load, swept_keys
from analysis.read.load import KnownState, load_runs
from analysis.read.steps import choose_measured, read_steps
from analysis.results.curves import scaling_curves
from disttrain.errors import ConfigError
from disttrain.records.json_files import read_json, write_json, write_text
from disttrain.records.run_directory import RunDir
from tests.support.fake_runs import fake_run, fake_sweep


def only_row(sweep: Path) -> pd.Series:
    table = load([sweep])
    assert len(table) == 1
    return table.iloc[0]


def test_one_row_a_run_with_typed_columns(tmp_path: Path) -> None:
    table = load([fake_sweep(tmp_path, axes=[{"parallel.strategy": "ddp"}, {"parallel.strategy": "auto"}])])
    assert len(table) == 3 * 3 * 2
    assert table["included"].all()
    assert [str(table[name].dtype) for name in ("run", "nodes", "step_s", "included")] == [
        "string",
        "Int64",
        "Float64",
        "boolean",
    ]
    assert swept_keys(table) == ["parallel.strategy", "resources.nodes"]
    assert sorted(table["parallel.strategy"].unique()) == ["auto", "ddp"]
    row = table.iloc[0]
    assert row["samples_per_s"] == pytest.approx(
        row["measured_steps"] * row["global_batch_size"] / row["measured_s"]
    )
    assert row["step_s"] == pytest.approx(row["measured_s"] / row["measured_steps"])
    assert pd.isna(row["comm_transfer_s"])  # one rank: nothing to measure, which is not zero
    assert row["bits_per_byte"] == pytest.approx(row["valid_loss"] / np.log(2))


def test_a_run_planned_before_a_key_was_swept_has_it_from_its_config(tmp_path: Path) -> None:
    fake_run(tmp_path / "s" / "old", nodes=1)
    fake_run(tmp_path / "s" / "new", nodes=1, axes={"optim.lr": 0.5})
    table = load([tmp_path / "s"]).set_index("run")
    assert table.loc["old", "optim.lr"] == 1e-3
    assert table.loc["new", "optim.lr"] == 0.5


@pytest.mark.parametrize(
    ("end", "state", "note"),
    [
        ("failed", "failed", "crashed: rank 1: boom"),
        ("running", "running", "not finished: step 55 of 110"),
        ("planned", "planned", "not started"),
    ],
)
def test_an_unfinished_run_is_listed_and_left_out(tmp_path: Path, end, state: str, note: str) -> None:
    fake_run(tmp_path / "s" / "run", nodes=2, end=end, message="rank 1: boom")
    row = only_row(tmp_path / "s")
    assert not row["included"]
    assert row["state"] == state
    assert row["note"].startswith(note)
    assert row["nodes"] == 2


@pytest.mark.parametrize(
    ("text", "note"),
    [
        (None, "finished, but metrics.json is missing"),
        ("", "finished, but metrics.json cannot be read"),
        ('{"name": "r', "finished, but metrics.json cannot be read"),
        ("[]", "finished, but metrics.json cannot be read"),
        ("\udcff", "finished, but metrics.json cannot be read"),
        ('{"name": "run"}', "finished, but metrics.json does not fit its schema: sweep: Field required"),
    ],
)
def test_bad_metrics_make_a_row_with_a_note(tmp_path: Path, text: str | None, note: str) -> None:
    run = fake_run(tmp_path / "s" / "run")
    run.metrics.unlink()
    if text is not None:
        run.metrics.write_bytes(text.encode(errors="surrogateescape"))
    row = only_row(tmp_path / "s")
    assert not row["included"]
    assert row["note"].startswith(note)


@pytest.mark.parametrize(("device", "devices"), [("NVIDIA H100", 4), ("cpu", 1)])
def test_devices_of_data_parallel_are_the_gpus_of_the_node_or_one_cpu(
    tmp_path: Path, device: str, devices: int
) -> None:
    fake_run(
        tmp_path / "s" / "run", gpus_per_node=4, axes={"parallel.strategy": "dp"},
        overrides={"device": device, "world_size": 1, "ranks_per_node": 1, "local_batch_size": 32},
    )  # fmt: skip
    assert only_row(tmp_path / "s")["devices"] == devices


@pytest.mark.parametrize(("text", "note"), [(None, "run.json is missing"), ("{", "run.json cannot be read")])
def test_a_run_without_run_json_is_left_out_and_makes_no_curve(
    tmp_path: Path, text: str | None, note: str
) -> None:
    axes = [{"parallel.ddp.bucket_mb": 4}, {"parallel.ddp.bucket_mb": 32}]
    sweep = fake_sweep(tmp_path, nodes=(1,), repeats=2, axes=axes)
    run = RunDir(sweep / "n1x1-4-r0")
    run.run_json.unlink()
    if text is not None:
        run.run_json.write_text(text)
    table = load([sweep])
    row = table.set_index("run").loc["n1x1-4-r0"]
    assert (row["state"], row["included"], row["note"].startswith(note)) == ("done", False, True)
    known = {run.path: KnownState("corrupt", "run.json is not valid JSON", 0)}
    assert list(load([sweep], states=known)["note"]) == ["", "", "run.json is not valid JSON", ""]
    assert [curve.label for curve in scaling_curves(load_runs([sweep]))] == ["bucket_mb 4", "bucket_mb 32"]


def test_a_run_that_is_all_warm_up_is_left_out(tmp_path: Path) -> None:
    nothing = {"measured_steps": 0, "measured_s": None, "samples_per_s": None, "steps": 5}
    fake_run(tmp_path / "s" / "run", overrides=nothing)
    assert only_row(tmp_path / "s")["note"] == "no measured steps: all 5 were warm-up"


def test_a_folder_that_is_no_sweep_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such folder"):
        load([tmp_path / "absent"])
    with pytest.raises(ConfigError, match="no runs in"):
        load([tmp_path])


def test_step_times_leave_out_warm_up_and_tolerate_a_truncated_line(tmp_path: Path) -> None:
    run = fake_run(tmp_path / "s" / "run")
    with open(run.attempt(0).steps(0), "a") as file:
        file.write('{"step": 111, "step_s"')
    times = load_runs([tmp_path / "s"])[0].step_durations_s
    measured_s = read_json(run.metrics)["measured_s"]
    assert times.size == 100
    assert times.sum() == pytest.approx(measured_s)


def test_step_times_leave_out_a_line_of_warm_up_steps(tmp_path: Path) -> None:
    run = fake_run(tmp_path / "s" / "run")
    lines = [
        {"first": 1, "last": 10, "bins": [[5, 10]]},
        {"first": 11, "last": 110, "bins": [[0, 99], [9, 1]]},
    ]
    write_text(run.attempt(0).steps(0), "".join(f"{json.dumps(line)}\n" for line in lines))
    assert load_runs([tmp_path / "s"])[0].step_durations_s.size == 100


def write_steps(run: RunDir, attempt: int, first: int, last: int) -> None:
    lines = [json.dumps({"step": step, "step_s": attempt + step / 100}) for step in range(first, last + 1)]
    write_text(run.attempt(attempt).steps(0), "".join(f"{line}\n" for line in lines))


@pytest.mark.parametrize(
    ("attempts", "last", "expected"),
    [
        # 0 was killed at step 7, 1 went on from 4 and was killed at 5, 2 did the rest from 4 again
        ([(1, 7), (5, 5), (5, 6)], None, {1: 0, 2: 0, 3: 0, 4: 0, 5: 2, 6: 2}),
        ([(1, 7), (5, 5), (5, 6)], 0, dict.fromkeys(range(1, 8), 0)),
        ([(1, 9), (1, 3)], None, {1: 1, 2: 1, 3: 1}),  # started anew
    ],
)
def test_steps_over_attempts_are_counted_once(
    tmp_path: Path, attempts: list[tuple[int, int]], last: int | None, expected: dict[int, int]
) -> None:
    run, problems = RunDir(tmp_path), list[str]()
    for attempt, (first, final) in enumerate(attempts):
        write_steps(run, attempt, first, final)
    run.attempt(3).path.mkdir()  # ended before its first step
    steps = choose_measured(read_steps(read_attempts(run, problems), problems), last, (), 0)
    kept = steps.chosen(steps.kept)
    assert dict(zip(kept.step.tolist(), kept.attempt.tolist(), strict=True)) == expected


def test_a_stopped_run_is_not_finished(tmp_path: Path) -> None:
    run = fake_run(tmp_path / "s" / "run")
    run.done.unlink()
    write_json(run.metrics, read_json(run.metrics) | {"status": "stopped", "stop_cause": "deadline"})
    (row,) = load([tmp_path / "s"]).itertuples()
    assert (row.state, row.included) == ("failed", False)
    assert row.note.startswith("deadline at step")


@pytest.mark.parametrize("damage", ["missing", "corrupt"])
def test_step_times_fall_back_to_the_histogram(tmp_path: Path, damage: str) -> None:
    run = fake_run(tmp_path / "s" / "run")
    path = run.attempt(0).steps(0)
    if damage == "missing":
        path.unlink()
    else:
        path.write_text("not json\n" + path.read_text())
    times = load_runs([tmp_path / "s"])[0].step_durations_s
    assert times.size == 100
    assert times.mean() == pytest.approx(0.1, rel=0.1)


def test_losses_keep_a_loss_that_was_not_finite_as_missing(tmp_path: Path) -> None:
    run = fake_run(tmp_path / "s" / "run")
    metrics = read_json(run.metrics)
    metrics["loss_history"][3]["loss"] = None
    write_json(run.metrics, metrics)
    (loaded,) = load_runs([tmp_path / "s"])
    assert [each.step for each in loaded.curves["loss_history"] if each.loss is None] == [4]
    assert [each.step for each in loaded.curves["eval_history"]] == [55, 110]


def test_analysis_imports_neither_torch_nor_jobs() -> None:
    code = (
        "import sys, analysis.report, analysis.read.load, analysis.draw.style;"
        "sys.exit(any(name in sys.modules for name in ('torch', 'jobs', 'matplotlib.pyplot')))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_what_runs_started_by_hand_differ_in_is_an_axis(tmp_path: Path) -> None:
    for name, batch, every in (("a", 4, 10), ("b", 32, 10), ("c", 32, 99)):
        run = fake_run(tmp_path / "by-hand" / name, nodes=1, local_batch_size=batch)
        record = read_json(run.run_json)
        record["axes"] = {}
        record["config"]["train"]["log_every"] = every  # excluded from the key
        write_json(run.run_json, record)
    table = load([tmp_path / "by-hand"])
    assert swept_keys(table) == ["train.local_batch_size"]
    assert table["train.local_batch_size"].tolist() == [4, 32, 32]


def test_an_axis_of_a_script_with_the_name_of_a_column_has_a_column_of_its_own(tmp_path: Path) -> None:
    run = fake_run(tmp_path / "s" / "n1")
    record = read_json(run.run_json)
    write_json(run.run_json, record | {"axes": {"samples_per_s": 3, "state": "a", "lr": 0.5}})
    table = load([tmp_path / "s"])
    assert table.columns.is_unique
    assert [table[name].item() for name in ("state", "axes.state", "axes.samples_per_s", "lr")] == [
        "done",
        "a",
        3,
        0.5,
    ]


def test_unknown_fields_are_not_read(tmp_path: Path) -> None:
    run = fake_run(tmp_path / "s" / "run")
    metrics = read_json(run.metrics)
    metrics["step_time"]["skew"] = 0.5
    write_json(run.metrics, metrics | {"future": 1})
    row = only_row(tmp_path / "s")
    assert row["included"]
    assert row["samples_per_s"] == metrics["samples_per_s"]
    assert row["note"] == ""


@pytest.mark.parametrize("command", [None, "python train.py"])
def test_metrics_of_a_newer_schema_are_left_out(tmp_path: Path, command: str | None) -> None:
    run = fake_run(tmp_path / "s" / "run")
    write_json(run.metrics, read_json(run.metrics) | {"schema_version": 7, "future": 1})
    if command:
        record = read_json(run.run_json)
        write_json(run.run_json, record | {"config": record["config"] | {"command": [command]}})
    row = only_row(tmp_path / "s")
    assert not row["included"]
    assert row["note"] == (
        "finished, but metrics.json has schema version 7, and this version of disttrain reads at most 1; "
        "write the report with the newer version"
    )
