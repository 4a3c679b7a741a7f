"""The line of a batch log that gives the reason of a failure, and states of runs whose agents never started.

The logs of Slurm 22.05, of Environment Modules 5.2 and of one Lmod 8.6 error are recorded. The other Lmod
error, and those of pyxis, apptainer and conda, follow the formats of their messages.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from disttrain.records.json_files import write_json, write_text
from disttrain.records.run_directory import RunDir
from jobs.core import journal
from jobs.schedulers.slurm.scheduler import SlurmScheduler
from jobs.status.refresh import batch_log_of, error_line, last_line, refresh
from jobs.status.run_state import RunState, read_state
from tests.support.commands import Commands, record, sacct, squeue
from tests.support.jobs import FakeSlurm
from tests.support.states import on_slurm
from tests.support.verbs import ask, ask_json

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
        ("error: cannot load:\n  cuda/12\nleaving\n", "error: cannot load: cuda/12"),
        ("srun: error: Unable to create step for job 12: no memory\nleaving\n",
         "srun: error: Unable to create step for job 12: no memory"),
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
    timeout = "slurmstepd: error: *** JOB 7 ON died-1 CANCELLED AT 2026-11-22T10:51:28 AT TIME LIMIT ***\n"
    assert last_line(f"cannot stat x\ncopying the data\n{timeout}", CONSEQUENCE) == "copying the data"
    requeued = "slurmstepd-n1: error: *** JOB 7 ON n1 CANCELLED AT 2026-11-22T11:45:50 DUE TO REQUEUE ***\n"
    assert last_line(timeout + requeued + "srun: got SIGCONT\n", CONSEQUENCE) is None


SET_UP = "No such x\nthe end\n"


def ended(run: RunDir, log: str | None, **job: str | None) -> RunState:
    """The state of a run whose job has ended with this batch log."""
    if log is not None:
        write_text(run.submissions / "7.log", log)
    return refresh([read_state(run)], FakeSlurm("ended", **job))[0]


@pytest.mark.parametrize(
    ("log", "job", "cause", "message"),
    [
        (SET_UP, {"message": "m"}, "launch_failed", "m: No such x"),
        (SET_UP, {}, "launch_failed", "its job ended before its agents started: No such x"),
        (
            "No such x\nthe end\n",
            {"message": "m", "cause": "cancelled"},
            "cancelled",
            "m during its set-up: the end",
        ),
        ("", {"message": "m"}, "launch_failed", "m"),
        (None, {"message": "m"}, "launch_failed", "m"),
    ],
)
def test_a_job_that_ended_before_its_agents_started_quotes_its_log(
    tmp_path: Path, log: str | None, job: dict[str, str], cause: str, message: str
) -> None:
    run = on_slurm(tmp_path)
    state = ended(run, log, **job)
    assert (state.state, state.cause, state.message, state.retryable) == ("failed", cause, message, True)
    assert batch_log_of(state, FakeSlurm()) == (None if log is None else run.submissions / "7.log")
    assert state.before_agents is (log is not None)


def test_a_job_that_slurm_has_forgotten_failed_to_start_where_it_has_a_log(tmp_path: Path) -> None:
    run, forgotten = on_slurm(tmp_path), FakeSlurm("not_found")
    write_text(run.submissions / "7.log", "No such x\n")
    os.utime(run.submissions, (1.0, 1.0))
    assert refresh([read_state(run)], forgotten)[0].cause == "launch_failed"
    (run.submissions / "7.log").unlink()
    os.utime(run.submissions, (1.0, 1.0))
    assert refresh([read_state(run)], forgotten)[0].cause == "lost"


def test_a_requeued_job_quotes_the_log_of_its_failed_set_up_alone(tmp_path: Path) -> None:
    run = on_slurm(tmp_path, claimed=True)
    outcome = {"cause": "deadline", "attempt": 0, "message": "left", "retryable": True, "next": "requeue"}
    write_json(run.failed, outcome | {"ended": journal.utc_now()})
    state = ended(run, "No such x\n", message="m")
    assert (state.cause, state.message) == ("launch_failed", "m: No such x (requeued after deadline: left)")
    state = ended(run, "No such x\n", message="m", cause="cancelled")  # perhaps before it started
    assert state.message == "m (requeued after deadline: left)"


def test_the_refusal_of_the_step_after_a_failure_is_quoted(tmp_path: Path) -> None:
    run = on_slurm(tmp_path, claimed=True)
    refusal = "srun: error: Unable to create step for job 7: Memory required by task is not available"
    for log, message in (("error: x\n", "m"), (f"error: x\n{refusal}\n", f"m: {refusal}")):
        state = ended(run, log, message="m")
        assert (state.state, state.message, state.before_agents) == ("lost", message, False)


def test_a_run_cancelled_during_its_set_up_keeps_its_log(tmp_path: Path) -> None:
    run = on_slurm(tmp_path)
    write_text(run.submissions / "7.log", "copying\n")
    journal.revoke(run, 0, "cancelled", "cancelled before it started")
    assert batch_log_of(read_state(run), FakeSlurm()) == run.submissions / "7.log"


def test_status_show_and_logs_lead_to_the_batch_log(
    tmp_path: Path, commands: Commands, capsys: pytest.CaptureFixture[str]
) -> None:
    run = on_slurm(tmp_path)
    text = "copying\nsh: exec: python: not found\n"
    write_text(run.submissions / "7.log", text)
    squeue(commands)
    sacct(commands, record("7", "FAILED", "127:0"))
    for command in ("status", "show s/a"):
        shown = ask_json(capsys, f"{command} --runs '{tmp_path}'")["runs"][0]
        assert (shown["state"], shown["cause"]) == ("failed", "launch_failed")
        assert shown["message"].endswith(": sh: exec: python: not found")
    assert f"{run.submissions}/7.log" in ask(capsys, f"show s/a --runs '{tmp_path}'")
    for options in ("", " --follow"):
        assert ask(capsys, f"logs s/a --runs '{tmp_path}'{options}") == text
