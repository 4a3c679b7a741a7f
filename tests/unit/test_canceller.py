"""Who cancelled a run: `submit.py cancel`, or somebody by other means."""

from __future__ import annotations

from pathlib import Path

from disttrain.records.json_files import write_json
from disttrain.records.run_directory import RunDir
from jobs.core import journal
from jobs.node.torchrun import CANCELLED_BY_SCHEDULER
from jobs.schedulers.slurm.scheduler import SlurmScheduler
from jobs.status.refresh import refresh, with_canceller
from jobs.status.run_state import RunState, read_state
from tests.support.commands import Commands, record, sacct, squeue
from tests.support.states import on_slurm


def asked(run: RunDir) -> RunState:
    return refresh([read_state(run)], SlurmScheduler())[0]


def test_a_run_with_a_cancel_on_record_is_cancelled_however_its_job_ended(
    commands: Commands, tmp_path: Path
) -> None:
    run = on_slurm(tmp_path, claimed=True)
    journal.write_cancel(run, 0, "alice", "login1")
    squeue(commands)
    sacct(commands, record("7", "RUNNING"))
    assert asked(run).state == "running", "its job has not ended"
    for line in (record("7", "COMPLETED"), record("7", "FAILED", "0:9"), record("7", "CANCELLED by 0")):
        sacct(commands, line)
        state = asked(run)
        assert (state.displayed_state, state.retryable) == ("cancelled", True)
        assert state.message == "by `submit.py cancel` of alice on login1"


def test_accounting_names_the_user_behind_a_recorded_end(commands: Commands, tmp_path: Path) -> None:
    run = on_slurm(tmp_path, claimed=True)
    outcome = {"attempt": 0, "cause": "cancelled", "message": CANCELLED_BY_SCHEDULER, "retryable": True}
    write_json(run.failed, outcome)
    squeue(commands)
    sacct(commands, record("7", "CANCELLED by 0"))
    assert with_canceller(read_state(run)).message == "its job was cancelled by root"
    sacct(commands, record("7", "PREEMPTED"))
    assert with_canceller(read_state(run)).message == "its job was pre-empted, and not requeued"
    commands.add("sacct", "exit 1")
    assert with_canceller(read_state(run)).message == CANCELLED_BY_SCHEDULER
    (commands.folder / "calls").unlink()
    journal.write_cancel(run, 0, "alice", "login1")
    assert with_canceller(read_state(run)).message == "by `submit.py cancel` of alice on login1"
    assert not (commands.folder / "calls").exists()


def test_squeue_alone_names_no_user(commands: Commands, tmp_path: Path) -> None:
    run = on_slurm(tmp_path, claimed=True)
    squeue(commands, "7|CANCELLED|100|None")
    for line in (record("7", "RUNNING"), record("8", "CANCELLED by 0")):  # accounting lags
        sacct(commands, line)
        assert (asked(run).displayed_state, asked(run).message) == ("cancelled", "its job was cancelled")
