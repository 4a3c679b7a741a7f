"""The line of a batch log that gives the reason of a failure, and states of runs whose agents never started.

The logs of Slurm 22.05, of Environment Modules 5.2 and of one Lmod 8.6 error are recorded. The other Lmod
error, and those of pyxis, apptainer and conda, follow the formats of their messages.
"""

from __future__ import annotations

import time
from pathlib import Path

import pytest

import submit as command_line
from disttrain.records.json_files import write_json, write_text
from disttrain.records.run_directory import RunDir
from jobs.cli.tables import state_note
from jobs.core import journal
from jobs.schedulers.interface import Job, JobStatus
from jobs.schedulers.slurm.scheduler import SlurmScheduler
from jobs.status.refresh import ACCOUNTING_LAG_S, batch_log_of, error_line, last_line, refresh, refresh_all
from jobs.status.run_state import RunState, read_state
from jobs.submission.decide import resume_actions
from tests.support.jobs import CODE, FakeScheduler, FakeSlurm
from tests.support.states import make_run, on_slurm

CONSEQUENCE = SlurmScheduler.log_consequence

EXITED = """\
srun: error: died-1: task 0: Exited with exit code {0}
srun: error: died-2: task 1: Exited with exit code {0}
"""
NO_PYDANTIC = """\
Traceback (most recent call last):
Traceback (most recent call last):
  File "<frozen runpy>", line 198, in _run_module_as_main
  File "/runs/.code/16f7ac7e9786bc99/disttrain/config/config_tree.py", line 17, in <module>
    from pydantic import (
ModuleNotFoundError: No module named 'pydantic'
  File "<frozen runpy>", line 198, in _run_module_as_main
    from pydantic import (
ModuleNotFoundError: No module named 'pydantic'
"""
LMOD = """\
Lmod has detected the following error: These module(s) or extension(s) exist
but cannot be loaded as requested: "cuda/12.9"
   Try: "module spider cuda/12.9" to see how to load the module(s).



"""
LMOD_UNKNOWN = """\
Lmod has detected the following error:  The following module(s) are unknown:
"nope/9.9"

Please check the spelling or version number. Also try "module spider ..."
It is also possible your cache file is out-of-date; it may help to try:
  $ module --ignore_cache load "nope/9.9"

Also make sure that all modulefiles written in TCL start with the string
#%Module

"""
PYXIS = """\
slurmstepd: error: pyxis: child 31415 failed with error code: 1
slurmstepd: error: pyxis: failed to import docker image
slurmstepd: error: pyxis: printing enroot log file:
slurmstepd: error: pyxis:     [ERROR] URL https://registry-1.docker.io/v2/x/manifests/1 gave error code: 404
slurmstepd: error: pyxis: couldn't start container
slurmstepd: error: spank: required plugin spank_pyxis.so: task_init() failed with rc=-1
slurmstepd: error: Failed to invoke spank plugin stack
"""


@pytest.mark.parametrize(
    ("log", "line"),
    [
        ("/run/spool/died-1/job45/slurm_script: line 22: module: command not found\n",
         "line 22: module: command not found"),
        (LMOD, "Lmod has detected the following error: These module(s) or extension(s) exist but cannot be "
         'loaded as requested: "cuda/12.9"'),
        (LMOD_UNKNOWN,
         'Lmod has detected the following error: The following module(s) are unknown: "nope/9.9"'),
        ("Loading mpi/1\n  ERROR: Unable to locate a modulefile for 'nope/1.0'\n",
         "ERROR: Unable to locate a modulefile for 'nope/1.0'"),
        ("ls: cannot access '/nonexistent': No such file or directory\n",
         "ls: cannot access '/nonexistent': No such file or directory"),
        (("sh: 1: exec: /usr/bin/python3.99: not found\n" * 2 + EXITED.format(127)) * 2,
         "sh: 1: exec: /usr/bin/python3.99: not found"),
        ((NO_PYDANTIC + EXITED.format(1)) * 2, "ModuleNotFoundError: No module named 'pydantic'"),
        ("cannot start: scontrol: No such file or directory\n" + EXITED.format(69),
         "cannot start: scontrol: No such file or directory"),
        (PYXIS + EXITED.format(1),
         "slurmstepd: error: pyxis: [ERROR] URL https://registry-1.docker.io/v2/x/manifests/1 gave error "
         "code: 404"),
        ("INFO:    squashfuse not found, will not be able to mount SIF\n"
         "FATAL:   could not open image /x.sif: lstat /x.sif: no such file or directory\n"
         + EXITED.format(255),
         "FATAL: could not open image /x.sif: lstat /x.sif: no such file or directory"),
        ("\nEnvironmentNameNotFound: Could not find conda environment: torch\n"
         "You can list all discoverable environments with `conda info --envs`.\n\n",
         "EnvironmentNameNotFound: Could not find conda environment: torch"),
        ("srun: error: Unable to create step for job 12: Invalid generic resource (gres) specification\n",
         "srun: error: Unable to create step for job 12: Invalid generic resource (gres) specification"),
        ("cannot start: no scontrol\n" + EXITED.format(69)
         + "srun: error: Unable to create step for job 12: Memory required by task is not available\n",
         "cannot start: no scontrol"),
        ("\x1b[31merror: quota exceeded\x1b[0m\nsrun: Job step aborted: Waiting up to 32 seconds for it\n"
         "slurmstepd: error: *** STEP 12.0 ON died-1 CANCELLED AT 2026-11-22T10:51:28 ***\n",
         "error: quota exceeded"),
        ("bash: warning: setlocale: cannot change locale (en_US)\nGPU 3: 7 uncorrectable ECC\n",
         "GPU 3: 7 uncorrectable ECC"),
        ("tar: x: Cannot stat: No such file\n" + "copied\n" * 60, "copied"),
        (EXITED.format(3), "srun: error: died-2: task 1: Exited with exit code 3"),
        ("x" * 400, "x" * 299 + "…"),
        ("\n\n", None),
    ],
)  # fmt: skip
def test_the_line_with_the_reason(log: str, line: str | None) -> None:
    assert error_line(log, CONSEQUENCE) == line


def test_the_last_line_before_slurm_ended_the_job() -> None:
    ended = "slurmstepd: error: *** JOB 7 ON died-1 CANCELLED AT 2026-11-22T10:51:28 DUE TO TIME LIMIT ***\n"
    assert last_line(f"cannot stat x\ncopying the data\n{ended}", CONSEQUENCE) == "copying the data"
    requeued = "slurmstepd-n1: error: *** JOB 7 ON n1 CANCELLED AT 2026-11-22T11:45:50 DUE TO REQUEUE ***\n"
    assert last_line(ended + requeued + "srun: got SIGCONT\n", CONSEQUENCE) is None


def log(run: RunDir, text: str) -> None:
    write_text(run.submissions / "7.log", text)


def asked(run: RunDir, status: JobStatus, message: str | None = None, **job: object) -> RunState:
    return refresh([read_state(run)], FakeSlurm(status, message=message, **job))[0]


def test_a_job_that_runs_without_an_agent_is_starting(tmp_path: Path) -> None:
    run = on_slurm(tmp_path)
    state = asked(run, "running", started=1.0)
    assert (state.state, state.active, state.before_agents) == ("starting", True, True)
    assert state.displayed_state == "starting"
    assert [action.kind for action in resume_actions([state], CODE)] == ["in_progress"]
    assert asked(run, "running", started=1.0, certain=False).state == "queued", "by accounting alone"
    journal.claim(run, 0, process={"host": "n", "pid": 1}, job_id="7", code_hash=CODE)
    assert asked(run, "running", started=1.0).state == "running"


def requeued(root: Path) -> RunDir:
    """A run whose first start has ended for a requeue."""
    run = on_slurm(root, claimed=True)
    outcome = {"cause": "deadline", "attempt": 0, "message": "left", "retryable": True, "next": "requeue"}
    write_json(run.failed, outcome | {"ended": journal.utc_now()})
    return run


def test_a_requeued_job_is_starting_once_slurm_has_started_it_again(tmp_path: Path) -> None:
    run = requeued(tmp_path)
    assert asked(run, "running", started=time.time() - 60).state == "queued", "the old start has not ended"
    state = asked(run, "running", started=time.time() + 6)
    assert (state.state, state.message) == ("starting", "requeued after deadline: left")


@pytest.mark.parametrize(
    ("job", "cause", "message"),
    [
        ({"message": "its job failed (exit code 1)"}, "launch_failed",
         "its job failed (exit code 1): No such x"),
        ({"message": "its job was cancelled", "cause": "cancelled"}, "cancelled",
         "its job was cancelled during its set-up: the end"),
        ({}, "launch_failed", "its job ended before its agents started: No such x"),
    ],
)  # fmt: skip
def test_a_job_that_ended_before_its_agents_started_quotes_its_log(
    tmp_path: Path, job: dict[str, str], cause: str, message: str
) -> None:
    run = on_slurm(tmp_path)
    log(run, "No such x\nthe end\n")
    state = asked(run, "ended", **job)  # type: ignore[arg-type]
    assert (state.state, state.cause, state.message, state.retryable) == ("failed", cause, message, True)
    assert batch_log_of(state, FakeSlurm()) == run.submissions / "7.log"


def test_a_job_that_printed_nothing_has_no_quote(tmp_path: Path) -> None:
    run = on_slurm(tmp_path)
    log(run, "")
    assert asked(run, "ended", "its job failed").message == "its job failed"


def test_a_job_that_slurm_has_forgotten_failed_to_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = on_slurm(tmp_path)
    assert asked(run, "not_found").state == "queued"
    monkeypatch.setattr("jobs.status.refresh.silent_s", lambda *_: ACCOUNTING_LAG_S + 1)
    assert asked(run, "not_found").state == "lost"
    log(run, "No such x\n")
    state = asked(run, "not_found")
    assert (state.state, state.cause) == ("failed", "launch_failed")


def test_a_requeued_job_quotes_the_log_of_its_failed_set_up_alone(tmp_path: Path) -> None:
    run = requeued(tmp_path)
    log(run, "No such x\n")
    state = asked(run, "ended", "its job failed")
    message = "its job failed: No such x (requeued after deadline: left)"
    assert (state.state, state.cause, state.message) == ("failed", "launch_failed", message)
    state = asked(run, "ended", "its job was cancelled", cause="cancelled")  # perhaps before it started
    assert state.message == "its job was cancelled (requeued after deadline: left)"


def test_status_show_and_logs_lead_to_the_batch_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = on_slurm(tmp_path)
    log(run, "copying\nsh: exec: python: not found\n")
    slurm = FakeSlurm("ended", message="its job failed (exit code 127)")
    monkeypatch.setattr("jobs.status.refresh.scheduler_named", lambda name: slurm)

    def printed(*command: str) -> str:
        assert command_line.main([*command, "--runs", str(tmp_path)]) == 0
        return capsys.readouterr().out

    reason = "launch_failed: its job failed (exit code 127): sh: exec: python: not found"
    assert reason in printed("status")
    assert reason in printed("show", "s/a")
    assert f"batch log  {run.submissions}/7.log" in printed("show", "s/a")
    assert printed("logs", "s/a") == "copying\nsh: exec: python: not found\n"
    assert printed("logs", "s/a", "--follow") == "copying\nsh: exec: python: not found\n"
    assert '"log": "batch"' in printed("logs", "s/a", "--json")
    assert state_note(read_state(run)) == "", "no state is recorded"


def test_a_supervisor_that_ended_before_it_was_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_run(tmp_path, "s/a", "queued")
    ended = FakeScheduler("pending")
    monkeypatch.setattr("jobs.status.refresh.scheduler_named", lambda name: ended)
    assert refresh_all([read_state(run)])[0].state == "queued"
    ended.job = Job("ended")
    log(run, "Fatal Python error: init_fs_encoding\n")
    monkeypatch.setattr(FakeScheduler, "batch_log", lambda *_: run.submissions / "7.log")
    (state,) = refresh_all([read_state(run)])
    reason = "its job ended before its agents started: Fatal Python error: init_fs_encoding"
    assert (state.state, state.cause, state.message) == ("failed", "launch_failed", reason)


def test_a_run_cancelled_during_its_set_up_keeps_its_log(tmp_path: Path) -> None:
    run = on_slurm(tmp_path)
    log(run, "copying\n")
    journal.revoke(run, 0, "cancelled", "cancelled before it started")
    assert batch_log_of(read_state(run), FakeSlurm()) == run.submissions / "7.log"


def test_the_refusal_of_the_step_after_a_failure_is_told(tmp_path: Path) -> None:
    run, cluster = on_slurm(tmp_path, claimed=True), FakeSlurm()
    cluster.job = Job("ended", "its job failed (exit code 137)")
    refusal = "srun: error: Unable to create step for job 7: Memory required by task is not available"
    for text, message in (("error: x\n", ""), (f"error: x\n{refusal}\n", f": {refusal}")):
        log(run, text)
        (state,) = refresh([read_state(run)], cluster)
        assert (state.state, state.message) == ("lost", f"its job failed (exit code 137){message}")
        assert not state.before_agents
