"""What runs used: by their attempts' own times, and by Slurm's accounting."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import submit as command_line
from analysis.read.frames import load_frames
from disttrain.config.config_tree import Config
from disttrain.records import gpu_hours
from disttrain.records.gpu_hours import RunGpuHours
from disttrain.records.json_files import write_json
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
    number: int, submitted: float | None, started: float, ended: float | None, **fields: Any
) -> dict[str, Any]:
    times = {"submitted": submitted, "started": started, "ended": ended}
    recorded = {name: None if at is None else gpu_hours.iso(T0 + at) for name, at in times.items()}
    return {"attempt": number, "submission": 0, "job_id": "7", "cluster": "slurm", **recorded, **fields}


def hours(seconds: float) -> Any:
    """Of two nodes with four GPUs each."""
    return pytest.approx(seconds * 8 / 3600)


@pytest.mark.parametrize(
    ("attempts", "progress", "seconds", "wait_s"),
    [
        # a requeued job waits from the end of the start before, a new one from its submission
        ([(0, 0, 60, 160), (1, 0, 170, 270), (2, 5000, 5030, 5130)], None, 300, 60 + 10 + 30),
        ([(1, 0, 100, None)], (1, gpu_hours.iso(T0 + 150)), 50, 100),
        ([(1, 0, 100, None)], (0, gpu_hours.iso(T0 + 150)), 0, 100),
        ([(1, 0, 100, None)], None, 0, 100),
        ([(0, 110, 100, 90)], None, 0, 0),  # clocks of two machines
        ([(0, None, 1, 2)], None, 1, None),
    ],
)
def test_every_attempt_counts_to_its_end_or_its_last_progress(attempts, progress, seconds, wait_s) -> None:
    records = [attempt(*each, submission=int(each[0] == 2)) for each in attempts]
    usage = gpu_hours.from_attempts(records, 8, "GPU-hours", progress)
    assert (usage.hours, usage.queue_wait_s) == (hours(seconds), wait_s)
    assert (usage.attempts, usage.source, usage.unit) == (len(attempts), "timestamps", "GPU-hours")


@pytest.mark.parametrize(
    ("cluster", "wanted", "device", "is_gpu"),
    [
        ("slurm", "auto", None, True),
        ("slurm", "cpu", None, False),
        ("slurm", "shared", "NVIDIA H100", False),
        ("local", "shared", "NVIDIA H100", False),
        ("local", "auto", None, False),
        ("local", "auto", "cpu", False),
        ("local", "auto", "NVIDIA H100", True),
        ("local", "cuda", None, True),
    ],
)
def test_hours_are_of_gpus_where_a_job_holds_some_or_a_device_was_recorded(
    cluster, wanted, device, is_gpu
) -> None:
    record = {"cluster": cluster, "config": {"resources": {"device": wanted}}}
    assert gpu_hours.unit_of(record, device) == ("GPU-hours" if is_gpu else "CPU rank-hours")


def job(
    submitted: float, started: float | None, ended: float | None, job_id: str = "7", gpus: int | None = 8
) -> JobRecord:
    times = [None if each is None else T0 + each for each in (submitted, started, ended)]
    elapsed_s = 0.0 if started is None else (started + 100 if ended is None else ended) - started
    return JobRecord(job_id, *times, elapsed_s, gpus, "COMPLETED", "0:0")


@pytest.mark.parametrize(
    ("records", "attempts", "usage"),
    [
        # each start of a requeued job counts, and one that never started waited for nothing
        (
            [job(0, 60, 160), job(160, 170, 270), job(300, None, 400, "8")],
            [attempt(0, 0, 60, 160), attempt(1, 0, 170, 270)],
            (200, 70, True),
        ),
        ([job(0, 10, 110, gpus=None)], [attempt(0, 0, 10, 110)], (100, 10, True)),  # GPUs of the config
        ([job(0, 10, 110, gpus=4)], [attempt(0, 0, 10, 110)], (50, 10, True)),
        ([job(0, 10, None)], [attempt(0, 0, 10, None)], (100, 10, False)),
        ([job(0, 10, 110)], [attempt(0, 0, 10, 110), attempt(1, 0, 10, 110, job_id="8")], None),
        ([job(0, None, 400)], [], None),
    ],
)
def test_accounting_counts_the_starts_of_all_jobs_unless_it_lacks_one(records, attempts, usage) -> None:
    starts = queries.by_job(records, ["7", "8"])
    found = accounted_usage({**starts}, "sacct", RUN, attempts)
    if usage is None:
        assert found is None
        return
    seconds, wait_s, is_final = usage
    assert (found[0].hours, found[0].queue_wait_s, found[1]) == (hours(seconds), wait_s, is_final)
    assert (found[0].source, found[0].attempts) == ("sacct", len(attempts))


def made(root: Path, *, name: str = "s/a", attempts: int = 1) -> RunDir:
    """A submitted run of two nodes that trained for 100 s in each attempt, as its files tell."""
    run = RunDir(root / name)
    write_json(run.run_json, {"name": run.name, "sweep": run.sweep, **RUN})
    for number in range(attempts):
        start = 60 + 110 * number
        write_json(run.attempt(number).record, attempt(number, 0, start, start + 100))
    submit(run)
    return run


def submit(run: RunDir, job_id: str = "7", **fields: str) -> None:
    journal.write_receipt(run, journal.write_intent(run, {"cluster": "slurm", **fields}), job_id)


def add_sacct(commands: Commands, *rows: str) -> None:
    commands.add("sacct", "; ".join(f"echo '{row}'" for row in rows))


def row(ended: float | str = T0 + 160, *, state: str = "COMPLETED", job_id: str = "7") -> str:
    elapsed = "102" if isinstance(ended, int) else "100"
    return f"{job_id}|{state}|0:0|{T0}|{T0 + 58}|{ended}|{elapsed}|billing=8,gres/gpu=8"


def test_accounting_is_recorded_once_it_is_final_and_read_without_slurm(
    commands: Commands, tmp_path: Path
) -> None:
    run = made(tmp_path)
    add_sacct(commands, row("Unknown"))
    usage_of_runs([run], write=True)
    assert not run.usage.exists()
    assert gpu_hours.read(run).source == "timestamps"
    add_sacct(commands, row())
    assert usage_of_runs([run])[run.path].source == "sacct"
    assert not run.usage.exists(), "it is written only as asked"
    usage_of_runs([run], write=True)
    asked = commands.calls().count("sacct")
    assert "--duplicates" in commands.calls(), "else a requeued job has its last start only"
    for usage in (gpu_hours.read(run), usage_of_runs([run], write=True)[run.path]):
        assert (usage.source, usage.hours, usage.queue_wait_s) == ("sacct", hours(102), 58)
    assert commands.calls().count("sacct") == asked
    write_json(run.attempt(1).record, attempt(1, 0, 170, 180))
    assert gpu_hours.read(run).source == "timestamps", "it has started again since"


@pytest.mark.parametrize("script", ['echo "Slurm accounting storage is disabled" >&2; exit 1', "exit 0"])
def test_without_accounting_the_attempts_own_times_count(
    commands: Commands, tmp_path: Path, script: str
) -> None:
    run = made(tmp_path, attempts=2)
    commands.add("sacct", script)
    usage = usage_of_runs([run], write=True)[run.path]
    assert not run.usage.exists()
    assert (usage.source, usage.hours, usage.queue_wait_s) == ("timestamps", hours(200), 70)


def test_only_accounting_of_the_cluster_that_the_job_was_submitted_to_is_asked(
    commands: Commands, tmp_path: Path
) -> None:
    run, local = made(tmp_path), made(tmp_path, name="s/b")
    write_json(local.attempt(0).record, attempt(0, 0, 60, 160, cluster="local"))
    add_sacct(commands, row())
    assert usage_of_runs([local])[local.path].source == "timestamps"
    assert not (commands.folder / "calls").exists()
    submit(run, cluster_name="there")
    for cluster, source in (("here", "timestamps"), ("there", "sacct")):
        commands.add("scontrol", f"echo 'ClusterName             = {cluster}'")
        assert usage_of_runs([run])[run.path].source == source


def test_hours_of_failed_set_ups_count_until_another_job_may_have_used_more(
    commands: Commands, tmp_path: Path
) -> None:
    run = made(tmp_path, attempts=0)
    for unstarted in (
        f"7|PENDING|0:0|{T0}|Unknown|Unknown|0|",
        f"7|CANCELLED by 0|0:0|{T0}|None|{T0 + 9}|0|",
    ):
        add_sacct(commands, unstarted)
        assert usage_of_runs([run]) == {}
    add_sacct(commands, row(state="FAILED"))
    usage = usage_of_runs([run], write=True)[run.path]
    assert (usage.hours, usage.queue_wait_s, usage.attempts) == (hours(102), 58, 0)
    assert gpu_hours.read(run) == usage
    again = journal.write_intent(run, {"cluster": "slurm"})
    assert gpu_hours.read(run) == usage
    journal.write_receipt(run, again, "8")
    assert gpu_hours.read(run) is None
    add_sacct(commands, row(state="FAILED"), row(state="FAILED", job_id="8"))
    assert usage_of_runs([run])[run.path].hours == hours(204)


def test_status_long_shows_runs_and_sums_and_writes_nothing(
    commands: Commands, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    outcome = {"cause": "finished", "attempt": 0, "ended": gpu_hours.iso(T0 + 160), "retryable": False}
    for name in ("s/a", "s/b", "t/a"):
        run = made(tmp_path, name=name)
        process = {"host": "node-1", "pid": 1, "start_ticks": 1}
        claim = {"by": "job", "attempt": 0, "job_id": "7", "code_hash": "c", "process": process}
        write_json(run.submissions / "0000.claim.json", claim)
        write_json(run.done, outcome)
    add_sacct(commands, row())
    before = sorted(tmp_path.rglob("*.json"))
    assert command_line.main(["status", "--long", "--runs", str(tmp_path)]) == 0
    assert "s: 0.453 GPU-hours, 2 attempts, 1:56 min in the queue" in capsys.readouterr().out
    assert command_line.main(["status", "--long", "--json", "--runs", str(tmp_path)]) == 0
    status = json.loads(capsys.readouterr().out)
    assert [usage["source"] for usage in status["usage"]] == ["sacct"] * 3
    assert [each["hours"] for each in status["usage_by_sweep"]] == [
        {"GPU-hours": hours(at)} for at in (204, 102)
    ]
    assert sorted(tmp_path.rglob("*.json")) == before


def test_the_table_of_a_report_has_the_hours_also_of_runs_that_failed(tmp_path: Path) -> None:
    for name, end in (("a", "done"), ("b", "failed"), ("c", "planned")):
        fake_run(tmp_path / "s" / name, nodes=2, end=end)
    table = load_frames([tmp_path / "s"]).runs.set_index("run")
    assert list(table["attempts"]) == [1, 1, 0]
    assert table["hours"].isna().tolist() == [False, False, True]
    assert (table.loc["b", "hours"], table.loc["b", "queue_wait_s"]) == (pytest.approx(2 * 60 / 3600), 60)
    assert table["hours_bound"].tolist() == [2.0, 2.0, 2.0]


@pytest.mark.parametrize("fields", [{"started": "soon"}, {"submitted": 3}, {"ended": "2026-01-02T03:04:05"}])
def test_a_damaged_usage_counts_as_absent(tmp_path: Path, fields: dict[str, Any]) -> None:
    run = fake_run(tmp_path / "s" / "n1", nodes=1)
    of_attempts = gpu_hours.read(run)
    recorded = of_attempts.model_dump() | {"source": "sacct", "submissions": gpu_hours.submission_count(run)}
    write_json(run.usage, recorded)
    assert gpu_hours.read(run) == RunGpuHours.model_validate(recorded)
    write_json(run.usage, recorded | {"starts": [recorded["starts"][0] | fields]})
    assert gpu_hours.read(run) == of_attempts
