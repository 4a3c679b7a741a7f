"""The container of the ranks as the agent has it: its commands, its variables, and why there is none."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from jobs.checks.rank_python import RankContainer, RankPython, find
from jobs.core import processes
from jobs.core.environment import AddedVariable
from jobs.node import interpreter
from jobs.node.command_stop import command_processes
from jobs.node.peers import CannotStart
from jobs.schedulers.slurm import container
from tests.support.jobs import wait_until

IMPORT_FAILED = """\
slurmstepd: error: pyxis: failed to import docker image
slurmstepd: error: pyxis:     [ERROR] URL https://x/manifests/1 gave error code: 404
slurmstepd: error: pyxis: couldn't start container
srun: error: n1: task 0: Exited with exit code 1
"""


@pytest.fixture
def node(tmp_path, monkeypatch):
    """A folder of commands, and one in memory."""
    commands, memory = tmp_path / "commands", tmp_path / "m m"
    commands.mkdir()
    memory.mkdir()
    monkeypatch.setenv("PATH", f"{commands}:{os.environ['PATH']}")
    monkeypatch.setenv("SLURMD_NODENAME", "n1")
    monkeypatch.setenv("SLURM_STEP_ID", "3")
    monkeypatch.setenv("SLURM_JOB_ID", "7")  # also of an array task beside other runs
    return commands, memory


def command(path: Path, text: str) -> None:
    path.write_text(f"#!/bin/sh\n{text}")
    path.chmod(0o755)


def opened(kind: str, memory: Path) -> Any:
    described = {"kind": kind, "image": "x.sif", "mounts": ["/data:/data:ro"], "arguments": ["--one"]}
    return container.opened(described, [Path("/code"), Path("/code")], memory, 60.0, Mock(job_id="6_3/0"))


def test_apptainer_starts_each_command_where_only_the_two_signals_are_ignored(node):
    commands, memory = node
    command(commands / "apptainer", 'shift 8; [ "$1" = x.sif ] && shift && exec "$@"')
    with opened("apptainer", memory) as inside:
        mounts = ["--bind", "/code:/code", "--bind", f"{memory}:{memory}", "--bind", "/data:/data:ro"]
        assert inside.words[:9] == [f"{commands}/apptainer", "exec", *mounts, "--one"]
        for number, ends in ((signal.SIGUSR1, False), (signal.SIGUSR2, False), (signal.SIGTERM, True)):
            done = subprocess.run([*inside.words, "sh", "-c", f"kill -{number} $$; echo lives"], check=False)
            assert done.returncode == (-number if ends else 0)


def test_pyxis_holds_a_container_open_that_commands_enter_until_the_node_is_left(node):
    commands, memory = node
    of_step = "SLURM_JOB_ID=7 RANK=0 CUDA_VISIBLE_DEVICES="
    words_of_holder = 'echo "$@" >$0.words; while [ "$1" != sh ]; do shift; done'
    command(commands / "srun", f'{words_of_holder}\nOF_IMAGE=1 {of_step} exec "$@"')
    command(commands / "nsenter", 'echo "$@"')
    with opened("pyxis", memory) as inside:
        words = (commands / "srun.words").read_text()
        holder = int((memory / "container").read_text())
        assert subprocess.check_output([*inside.words, "python3"], text=True) == (
            f"--target={holder} --mount --wd -- python3\n"
        )
        os.kill(holder, signal.SIGTERM)
    mounts = f"/code:/code,{memory}:{memory},/data:/data:ro"
    for word in ("--jobid=7", "--nodelist=n1", "--overlap", f"--container-mounts={mounts} --one sh -c"):
        assert word in words
    assert inside.variables["OF_IMAGE"] == "1"
    assert not {"SLURM_JOB_ID", "RANK", "CUDA_VISIBLE_DEVICES"} & {*inside.variables}, "those of the step"
    assert processes.is_running(holder)
    shutil.rmtree(memory)
    wait_until(lambda: not processes.is_running(holder) or processes.reap_children())


@pytest.mark.parametrize(
    ("kind", "srun", "why"),
    [
        ("apptainer", None, "apptainer is not installed on "),
        ("pyxis", None, "Pyxis started no container: srun failed"),
        ("pyxis", f"cat >&2 <<'END'\n{IMPORT_FAILED}END\nexit 1", "Pyxis started no container: slurmstepd: "
         "error: pyxis:     [ERROR] URL https://x/manifests/1 gave error code: 404"),
    ],
)  # fmt: skip
def test_why_there_is_no_container(kind, srun, why, node, monkeypatch):
    commands, memory = node
    monkeypatch.setenv("PATH", f"{commands}:/usr/bin:/bin" if srun else str(commands))
    if srun:
        command(commands / "srun", srun)
    with pytest.raises(CannotStart) as raised, opened(kind, memory):
        pass
    assert str(raised.value).startswith(why)


def test_the_ranks_run_the_python_of_the_image_and_the_variables_of_the_run(tmp_path):
    inside = ["/usr/bin/env", "OF_WORDS=1"]
    image = RankContainer(inside, {"PATH": str(tmp_path)}, precedence="X_")
    (tmp_path / "python3").symlink_to(sys.executable)
    python = find(
        {"launcher": "node"}, {**os.environ, "PYTHONSAFEPATH": ""}, is_trainer=False, container=image
    )
    assert (python.words[:2], python.variables) == (inside, {"PATH": str(tmp_path)})
    assert python.problem is None
    added = {name: AddedVariable("a", "", "config") for name in ("A", "TOKEN")}
    env = python.environment({"HOME": "/h", "PATH": "/p"}, added, {"TOKEN": "t"})
    assert env == {"HOME": "/h", "PATH": str(tmp_path), "A": "a", "TOKEN": "t", "X_A": "a", "X_TOKEN": "t"}
    outside = RankPython(["python"]).environment({"HOME": "/h"}, added)
    assert outside == {"HOME": "/h", "A": "a", "TOKEN": "a"}
    none = RankContainer(["/no/such/runtime"])
    problem = find({}, os.environ, is_trainer=False, container=none).problem
    assert problem == "python3 of the container cannot be started: No such file or directory"


def test_the_processes_of_a_command_are_known_below_the_runtime_of_a_container(tmp_path):
    words = [sys.executable, interpreter.__file__, str(tmp_path), "/", "sleep", "600"]
    env = os.environ | {"RANK": "0", "DISTTRAIN_NODE_FOLDER": str(tmp_path)}
    with subprocess.Popen(["sh", "-c", '"$@"; :', "sh", *words], env=env) as runtime:
        wait_until(lambda: command_processes(runtime.pid, tmp_path))
        assert command_processes(runtime.pid, tmp_path) == processes.children_of(runtime.pid)
        assert command_processes(1, tmp_path) != []
        with subprocess.Popen(["sleep", "600"]) as other:
            assert command_processes(other.pid, tmp_path) == []
            other.kill()
        os.kill(processes.children_of(runtime.pid)[0], signal.SIGKILL)
    assert command_processes(runtime.pid, tmp_path) == []
