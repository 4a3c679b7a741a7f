"""What runs used: by their attempts' own times, and by Slurm's accounting."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import submit as command_line
from analysis.read.frames import load
from disttrain.config.config_tree import Config
from disttrain.records import gpu_hours
from disttrain.records.gpu_hours import RunGpuHours
from disttrain.records.json_files import read_json, write_json
from disttrain.records.run_directory import RunDir
from jobs.core import journal
from jobs.schedulers.slurm import queries
from jobs.schedulers.slurm.queries import JobRecord
from jobs.status.gpu_hours import accounted_usage, usage_of_runs
from tests.support.commands import Commands
from tests.support.fake_runs import fake_run

T0 = 1_800_000_000
RUN: dict[str, Any] = {
    "cluster": "slurm",
    "config": Config.model_validate({"resources": {"nodes": 2, "gpus_per_node": 4}}).as_dict(),
}


def attempt(
    number: int, submitted: float, started: float, ended: float | None, **fields: Any
) -> dict[str, Any]:
    times = {"submitted": submitted, "started": started, "ended": ended}
    told = {name: None if at is None else gpu_hours.iso(T0 + at) for name, at in times.items()}
    return {"attempt": number, "submission": 0, "job_id": "7", "cluster": "slurm", **told, **fields}


def hours(seconds: float, devices: int = 8) -> Any:
    return pytest.approx(seconds * devices / 3600)


def test_every_attempt_counts_and_waits_from_the_end_of_the_one_before() -> None:
    first = attempt(0, 0, 60, 160)
    requeued = attempt(1, 0, 170, 270)
    again = attempt(2, 5000, 5030, 5130, submission=1)
    found = gpu_hours.from_attempts([first, requeued, again], 8, "GPU-hours")
    assert found.hours == hours(300)
    assert found.queue_wait_s == pytest.approx(60 + 10 + 30)
    assert (found.attempts, found.source, found.unit) == (3, "timestamps", "GPU-hours")


def test_an_attempt_that_nobody_closed_counts_to_its_last_sign_of_life() -> None:
    open_ = attempt(1, 0, 100, None)
    assert gpu_hours.from_attempts([open_], 8, "GPU-hours", (1, gpu_hours.iso(T0 + 150))).hours == hours(50)
    assert gpu_hours.from_attempts([open_], 8, "GPU-hours", (0, gpu_hours.iso(T0 + 150))).hours == 0
    assert gpu_hours.from_attempts([open_], 8, "GPU-hours").hours == 0
    assert gpu_hours.from_attempts([attempt(0, 0, 100, 90)], 8, "GPU-hours").hours == 0, (
        "clocks of two machines"
    )


def test_without_a_submission_no_wait_is_known() -> None:
    assert (
        gpu_hours.from_attempts([attempt(0, 0, 1, 2) | {"submitted": None}], 1, "GPU-hours").queue_wait_s
        is None
    )


@pytest.mark.parametrize(
    ("cluster", "wanted", "device", "unit"),
    [
        ("slurm", "auto", None, "GPU-hours"),
        ("slurm", "cpu", None, "CPU rank-hours"),
        ("slurm", "shared", "NVIDIA H100", "CPU rank-hours"),
        ("local", "shared", "NVIDIA H100", "CPU rank-hours"),
        ("local", "auto", None, "CPU rank-hours"),
        ("local", "auto", "cpu", "CPU rank-hours"),
        ("local", "auto", "NVIDIA H100", "GPU-hours"),
        ("local", "cuda", None, "GPU-hours"),
    ],
)
def test_what_the_hours_are_of(cluster: str, wanted: str, device: str | None, unit: str) -> None:
    record = {"cluster": cluster, "config": {"resources": {"device": wanted}}}
    assert gpu_hours.unit_of(record, device) == unit


def record(
    state: str,
    submitted: float,
    started: float | None,
    ended: float | None,
    job_id: str = "7",
    gpus: int | None = 8,
) -> JobRecord:
    at = [None if each is None else T0 + each for each in (submitted, started, ended)]
    elapsed_s = 0.0 if started is None else (started + 100 if ended is None else ended) - started
    return JobRecord(job_id, at[0], at[1], at[2], elapsed_s, gpus, state, "0:0")


def by_sacct(records: list[JobRecord], jobs: list[str], attempts: list[dict[str, Any]]) -> Any:
    starts = queries.by_job(records, jobs)
    return accounted_usage({**starts}, "sacct", RUN, attempts)


def test_accounting_counts_a_requeued_job_for_each_of_its_starts() -> None:
    records = [record("REQUEUED", 0, 60, 160), record("COMPLETED", 160, 170, 270)]
    never = record("CANCELLED", 300, None, 400, job_id="8")
    found = by_sacct([*records, never], ["7", "8"], [attempt(0, 0, 60, 160), attempt(1, 0, 170, 270)])
    assert found is not None
    told, over = found
    assert (told.hours, told.queue_wait_s, told.attempts, over) == (hours(200), 70, 2, True)
    assert told.source == "sacct"


def test_accounting_that_counts_no_gpus_leaves_them_to_the_config() -> None:
    found = by_sacct([record("COMPLETED", 0, 10, 110, gpus=None)], ["7"], [attempt(0, 0, 10, 110)])
    assert found is not None
    assert found[0].hours == hours(100)


def test_a_job_that_runs_is_not_over() -> None:
    found = by_sacct([record("RUNNING", 0, 10, None)], ["7"], [attempt(0, 0, 10, None)])
    assert found is not None
    assert (found[0].hours, found[1]) == (hours(100), False)


def test_accounting_that_lacks_a_job_is_not_used() -> None:
    attempts = [attempt(0, 0, 10, 110), attempt(1, 0, 10, 110, job_id="8")]
    assert by_sacct([record("COMPLETED", 0, 10, 110)], ["7", "8"], attempts) is None


def made(root: Path, *, name: str = "s/a", attempts: int = 1) -> RunDir:
    """A run of two nodes that trained for 100 s in each attempt, as its files tell."""
    run = RunDir(root / name)
    write_json(run.run_json, {"name": run.name, "sweep": run.sweep, **RUN})
    for number in range(attempts):
        start = 60 + 110 * number
        write_json(run.attempt(number).record, attempt(number, 0, start, start + 100))
    journal.write_intent(run, {"cluster": "slurm", "config_key": "k", "run_key": "r", "code_hash": "c"})
    journal.write_receipt(run, 0, "7")
    return run


def add_sacct(commands: Commands, *, ended: bool = True) -> None:
    end = str(T0 + 160) if ended else "Unknown"
    row = f"7|COMPLETED|0:0|{T0}|{T0 + 58}|{end}|102|billing=8,gres/gpu=8"
    commands.add("sacct", f"echo '{row}'")


def test_what_accounting_says_is_noted_once_it_is_final_and_read_without_slurm(
    commands: Commands, tmp_path: Path
) -> None:
    run = made(tmp_path)
    add_sacct(commands, ended=False)
    usage_of_runs([run], write=True)
    assert not run.usage.exists()
    assert gpu_hours.read(run).source == "timestamps"  # type: ignore[union-attr]
    add_sacct(commands)
    usage_of_runs([run], write=True)
    RunGpuHours.model_validate(read_json(run.usage))
    asked = commands.calls().count("sacct")
    assert "--duplicates" in commands.calls(), "else a requeued job has its last start only"
    for found in (gpu_hours.read(run), usage_of_runs([run])[run.path]):
        assert found is not None
        assert (found.source, found.hours, found.queue_wait_s) == ("sacct", hours(102), 58)
    usage_of_runs([run], write=True)
    assert commands.calls().count("sacct") == asked
    write_json(run.attempt(1).record, attempt(1, 0, 170, 180))
    assert gpu_hours.read(run).source == "timestamps", "it has started again since"  # type: ignore[union-attr]


@pytest.mark.parametrize("script", ['echo "Slurm accounting storage is disabled" >&2; exit 1', "exit 0"])
def test_without_accounting_the_attempts_own_times_tell(
    commands: Commands, tmp_path: Path, script: str
) -> None:
    run = made(tmp_path, attempts=2)
    commands.add("sacct", script)
    usage_of_runs([run], write=True)
    assert not run.usage.exists()
    found = usage_of_runs([run])[run.path]
    assert (found.source, found.hours, found.queue_wait_s) == ("timestamps", hours(200), 70)


def test_runs_of_this_machine_ask_no_accounting(commands: Commands, tmp_path: Path) -> None:
    run = made(tmp_path)
    write_json(run.attempt(0).record, attempt(0, 0, 60, 160, cluster="local"))
    add_sacct(commands)
    assert usage_of_runs([run])[run.path].source == "timestamps"
    assert not (commands.folder / "calls").exists()


def test_a_job_of_the_same_number_on_another_cluster_is_not_counted(
    commands: Commands, tmp_path: Path
) -> None:
    run = made(tmp_path)
    number = journal.write_intent(run, {"cluster": "slurm", "cluster_name": "there"})
    journal.write_receipt(run, number, "7")
    add_sacct(commands)
    for cluster, source in (("here", "timestamps"), ("there", "sacct")):
        commands.add("scontrol", f"echo 'ClusterName             = {cluster}'")
        assert usage_of_runs([run])[run.path].source == source


def test_status_long_shows_runs_and_sums_and_writes_nothing(
    commands: Commands, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("s/a", "s/b", "t/a"):
        run = made(tmp_path, name=name)
        write_json(
            run.submissions / "0000.claim.json",
            {
                "by": "job",
                "attempt": 0,
                "job_id": "7",
                "code_hash": "c",
                "process": {"host": "node-1", "pid": 1, "start_ticks": 1},
            },
        )
        outcome = {
            "cause": "finished",
            "attempt": 0,
            "ended": gpu_hours.iso(T0 + 160),
            "retryable": False,
        }
        write_json(run.done, outcome)
    add_sacct(commands)
    before = sorted(tmp_path.rglob("*.json"))
    assert command_line.main(["status", "--long", "--runs", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert "s: 0.453 GPU-hours, 2 attempts, 1:56 min in the queue" in out
    assert "t: 0.227 GPU-hours, 1 attempt, 58 s in the queue" in out
    assert "0.227 GPU-hours  8 a start" in out
    assert command_line.main(["status", "--long", "--json", "--runs", str(tmp_path)]) == 0
    told = json.loads(capsys.readouterr().out)
    assert [usage["source"] for usage in told["usage"]] == ["sacct"] * 3
    assert told["usage_by_sweep"][0]["hours"] == {"GPU-hours": hours(204)}
    assert sorted(tmp_path.rglob("*.json")) == before


def test_the_report_s_table_has_them_also_of_runs_that_failed(tmp_path: Path) -> None:

    fake_run(tmp_path / "s" / "a", nodes=2)
    fake_run(tmp_path / "s" / "b", nodes=2, end="failed", message="boom")
    fake_run(tmp_path / "s" / "c", nodes=2, end="planned")
    table = load([tmp_path / "s"]).set_index("run")
    assert list(table["attempts"]) == [1, 1, 0]
    assert table["hours"].isna().tolist() == [False, False, True]
    assert table.loc["b", "hours"] == pytest.approx(2 * 60 / 3600)
    assert table["hours_bound"].tolist() == [2.0, 2.0, 2.0]
    assert table.loc["b", "queue_wait_s"] == 60


def without_attempts(root: Path) -> RunDir:
    """A run whose job has started no attempt."""
    run = RunDir(root / "s" / "a")
    write_json(run.run_json, {"name": run.name, "sweep": run.sweep, **RUN})
    journal.write_receipt(run, journal.write_intent(run, {"cluster": "slurm"}), "7")
    return run


def test_hours_of_failed_set_ups_count(commands: Commands, tmp_path: Path) -> None:
    run = without_attempts(tmp_path)
    failed = f"7|FAILED|1:0|{T0}|{T0 + 50}|{T0 + 650}|600|billing=8,gres/gpu=8"
    commands.add("sacct", f"echo '{failed}'")
    found = usage_of_runs([run])[run.path]
    assert (found.hours, found.queue_wait_s, found.attempts) == (hours(600), 50, 0)
    usage_of_runs([run], write=True)
    assert gpu_hours.read(run) == found
    again = journal.write_intent(run, {"cluster": "slurm"})
    assert gpu_hours.read(run) == found
    journal.write_receipt(run, again, "8")
    assert gpu_hours.read(run) is None, "the new job may have used hours"
    commands.add("sacct", f"echo '{failed}'; echo '{failed.replace('7|', '8|', 1)}'")
    usage_of_runs([run], write=True)
    assert gpu_hours.read(run).hours == hours(1200)  # type: ignore[union-attr]


def test_a_job_that_has_not_started_has_used_nothing(commands: Commands, tmp_path: Path) -> None:
    run = without_attempts(tmp_path)
    commands.add("sacct", f"echo '7|PENDING|0:0|{T0}|Unknown|Unknown|0|'")
    assert usage_of_runs([run]) == {}
    commands.add("sacct", f"echo '7|CANCELLED by 0|0:0|{T0}|None|{T0 + 9}|0|'")
    assert usage_of_runs([run]) == {}


@pytest.mark.parametrize("fields", [{"started": "soon"}, {"submitted": 3}, {"ended": "2026-01-02T03:04:05"}])
def test_a_damaged_usage_counts_as_absent(tmp_path: Path, fields: dict[str, Any]) -> None:
    run = fake_run(tmp_path / "s" / "n1", nodes=1)
    of_attempts = gpu_hours.read(run)
    assert of_attempts is not None
    noted = of_attempts.model_dump() | {"source": "sacct", "submissions": gpu_hours.submission_count(run)}
    write_json(run.usage, noted)
    assert gpu_hours.read(run) == RunGpuHours.model_validate(noted)
    write_json(run.usage, noted | {"starts": [noted["starts"][0] | fields]})
    assert gpu_hours.read(run) == of_attempts
