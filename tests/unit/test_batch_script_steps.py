"""Batch scripts run with a stub in place of srun: steps, environment, code, set-up of each node."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from jobs.core import code_copy
from jobs.core.environment import SETUP_EXIT_VARIABLE
from jobs.core.run_code import archive_of
from jobs.schedulers.slurm.profile import GENERIC, Profile
from jobs.schedulers.slurm.script import render
from jobs.schedulers.slurm.steps import node_setup
from tests.support.scripts import batch, directives, run


def run_with_stub(
    folder: Path, srun: str, profile: Profile = GENERIC, **environment: str
) -> tuple[int, list[list[str]]]:
    """Exit code of a script with `srun` in place of srun, and the arguments of each call."""
    stub = folder / "srun"
    stub.write_text(f"#!/bin/bash\nprintf '%s\\0' \"$@\" >> calls; echo >> calls\n{srun}\n")
    stub.chmod(0o755)
    (folder / "script").write_text(render(batch(folder, profile=profile)))
    (folder / "calls").write_text("")
    environ = {"PATH": f"{folder}:/usr/bin:/bin", "SLURM_JOB_ID": "7", **environment}
    done = subprocess.run(["bash", "script"], cwd=folder, env=environ, capture_output=True, check=False)
    return done.returncode, [line.split("\0")[:-1] for line in (folder / "calls").read_text().splitlines()]


@pytest.mark.parametrize(("codes", "code"), [("0", 0), ("137 0", 0), ("137 75", 137)])
def test_a_failed_step_is_followed_by_one_that_closes_the_attempt(tmp_path, codes, code):
    (tmp_path / "codes").write_text(codes.replace(" ", "\n"))
    returned, calls = run_with_stub(
        tmp_path, 'code=$(head -n 1 codes); sed -i 1d codes; kill $PPID; kill -USR1 $PPID; exit "$code"'
    )
    assert returned == code, "the batch shell survives signals"
    assert len(calls) == len(codes.split())
    agents, *after = calls
    assert "--after-failure" not in agents
    for step in after:
        assert {"--nodes=1", "--ntasks=1", "--relative=0", "--overlap", "--mem=0"} <= set(step)
        assert step[-4:] == ["--after-failure", *agents[-3:]]


@pytest.mark.parametrize(("restarts", "before"), [("", 0), ("1", 1), ("3", 3), ("5", 1)])
def test_the_agents_step_has_another_number_in_each_start(tmp_path, restarts, before):
    """Empty steps come before it; a failure of one ends nothing."""
    strict = Profile(name="strict", setup=("set -e",))
    srun = '[ "${!#}" != true ]'  # the empty steps alone fail
    code, calls = run_with_stub(tmp_path, srun, strict, SLURM_RESTART_COUNT=restarts)
    assert (code, [step[-1] == "true" for step in calls]) == (0, [True] * before + [False])


@pytest.mark.parametrize(("set_up", "steps"), [("exit 3", 0), ("true", 2)])
def test_an_expedited_job_does_not_fail(tmp_path, set_up, steps):
    """Slurm would hold it, so that it never ends for jobs that wait for it."""
    profile = Profile(name="x", sbatch={"requeue": "expedite"}, setup=(set_up,))
    code, calls = run_with_stub(tmp_path, "exit 1", profile)
    assert (code, len(calls)) == (0, steps)
    assert directives((tmp_path / "script").read_text())["requeue"] == "expedite"


def test_a_task_of_an_array_starts_its_own_run_after_the_set_up(tmp_path):
    setup = f"export TMPDIR='{tmp_path}/'$SLURM_JOB_ID && mkdir -p \"$TMPDIR\" || exit"
    script = render(batch(tmp_path, Profile(name="x", setup=(setup,)), runs=2))
    trace = run(script, tmp_path / "it", SLURM_ARRAY_TASK_ID="1")
    assert trace.environment["TMPDIR"] == f"{tmp_path}/7"
    assert trace.started[-3:] == [f"{tmp_path}/runs/demo/n2-r1", "--submission", "1"]


def test_no_signal_ends_a_process_that_handles_none_yet(tmp_path):
    path = tmp_path / "python3"
    path.write_text("#!/bin/sh\nkill -USR1 $$ && kill -USR2 $$ && kill $$ && echo it lives\n")
    path.chmod(0o755)
    words = run(render(batch(tmp_path, python=str(path))), tmp_path / "it").started
    command = words[words.index("sh") :]
    assert subprocess.run(command, capture_output=True, check=True).stdout == b"it lives\n"


def test_variables_of_the_submitting_shell_do_not_change_srun(tmp_path):
    left = dict.fromkeys(
        (
            "SRUN_CPUS_PER_TASK", "SBATCH_PARTITION", "SLURM_CPU_BIND_TYPE", "SLURM_STEP_ID",
            "SLURM_MEM_BIND", "MASTER_ADDR", "RANK", "LOCAL_RANK", "WORLD_SIZE", "SLURM_GPUS",
            "SLURM_TRES_PER_TASK",
        ),
        "1",
    )  # fmt: skip
    kept = {"SLURM_CONF": "/etc/slurm.conf", "SLURM_JOB_NUM_NODES": "2", "LOCAL_SCRATCH": "/local"}
    seen = run(render(batch(tmp_path)), tmp_path / "it", **left, **kept, SLURM_EXPORT_ENV="NONE").environment
    assert not left.keys() & seen.keys()
    assert kept.items() | {("SLURM_EXPORT_ENV", "ALL")} <= seen.items()


def test_a_missing_code_copy_is_unpacked_from_its_archive(tmp_path):
    content = code_copy.CodeContent("files", {"jobs/__init__.py": b"x = 1"})
    copy = tmp_path / ".code" / content.name
    (tmp_path / "script").write_text(render(replace(batch(tmp_path), code=copy)))
    command, environ = ["bash", str(tmp_path / "script")], {**os.environ, "SLURM_JOB_ID": "7"}
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
    assert done.stderr.startswith(f"the code copy of this job is missing: {copy}\n")
    code_copy.write_copy(tmp_path, content)
    archived = archive_of(copy).read_bytes()
    shutil.rmtree(copy)
    subprocess.run(command, env=environ, capture_output=True, check=False)
    assert sorted(os.listdir(copy.parent)) == [copy.name, f"{copy.name}.tar"]
    assert (copy / "jobs/__init__.py").read_bytes() == b"x = 1"
    shutil.rmtree(tmp_path / ".code")
    code_copy.write_copy(tmp_path, content)
    assert archive_of(copy).read_bytes() == archived, "equal content, equal archive"


PRINT = "import json, os, sys; print(json.dumps([dict(os.environ), sys.argv[1:]]))"


def set_up(*lines: str) -> dict[str, str]:
    """Environment of a Python that the set-up of a node runs, as srun starts it, with its arguments."""
    start = f"bash -c \"$node_setup\" bash '{sys.executable}' -c '{PRINT}' \"it's\" 'a  b'"
    text = "\n".join([*node_setup(Profile(name="x", node_setup=lines)), start])
    done = subprocess.run(["bash", "-c", text], capture_output=True, text=True, check=True)
    environ, arguments = json.loads(done.stdout.splitlines()[-1])
    assert arguments == ["it's", "a  b"]
    return environ


def test_variables_of_the_set_up_reach_python_and_no_signal_ends_it():
    kills = [f"kill -{number} $$" for number in ("USR1", "USR2", "TERM")]
    environ = set_up(*kills, "export A='it'\"'\"'s'", "false", 'export B="$A $(echo 1)"')
    assert (environ["A"], environ["B"]) == ("it's", "it's 1")
    assert SETUP_EXIT_VARIABLE not in environ


@pytest.mark.parametrize(
    ("lines", "code"),
    [
        (["ls /nonexistent || exit", "export LATER=1"], "2"),
        (["exit 0"], "0"),
        (["set -e", "false"], "1"),
        (["set -u", 'echo "$NO_SUCH_VARIABLE"'], "127"),
    ],
)
def test_python_follows_a_set_up_that_exits_with_its_code(tmp_path, lines, code):
    environ = set_up(*lines)
    assert environ[SETUP_EXIT_VARIABLE] == code
    assert "LATER" not in environ
