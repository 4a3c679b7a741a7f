"""Commands that `job.launcher: node` and `rank` start, with real processes on the local cluster."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import submit as submit_py
from disttrain.records.run_directory import RunDir
from jobs.schedulers.local.scheduler import LocalScheduler
from tests.support.jobs import ended_afterwards, settled, wait_until

pytestmark = pytest.mark.multiprocess

NAMES = {
    "node": ["NODE_RANK", "NNODES", "RANK"],
    "rank": ["RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "NNODES"],
}
PROGRAM = """\
import json, os, pathlib, signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
folder, *names = sys.argv[1:]
print(json.dumps([os.environ.get(name) for name in names]), flush=True)
mark = pathlib.Path(folder, f"started-{os.environ.get('RANK', os.environ.get('NODE_RANK'))}")
if not mark.exists():
    mark.touch()
    time.sleep(600)
"""
PYTHON = shlex.quote(sys.executable)
SHELL = f"""\
#!/bin/bash
folder=$1; shift
{PYTHON} program.py "$folder" "$@" || exit
echo "$MASTER_ADDR:$MASTER_PORT"
"""
INNER = f"""\
{PYTHON} -m torch.distributed.run --nnodes $2 --node-rank $3 --master-addr $4 --master-port $5 \\
  --nproc-per-node 2 program.py "$1" RANK WORLD_SIZE || exit
echo saved
"""
WRAPPER = "import subprocess, sys; sys.exit(subprocess.call([sys.executable, *sys.argv[1:]]))"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("DISTTRAIN_QUEUE_DIR", str(tmp_path / "queue"))
    monkeypatch.chdir(tmp_path)
    Path("program.py").write_text(PROGRAM)
    Path("run.sh").write_text(SHELL)
    Path("inner.sh").write_text(INNER)
    Path("wrapper.py").write_text(WRAPPER)
    with ended_afterwards(tmp_path / "runs", LocalScheduler()):
        yield tmp_path


def start(launcher: str, *command: str) -> int:
    options = ["--cluster", "local", "--no-report", "--nodes", "2", "--gpus-per-node", "2", "--name", "s"]
    return submit_py.main(["run", *options, "--set", f"job.launcher={launcher}", "--", *command])


def only_run(folder: Path) -> RunDir:
    (path,) = (folder / "runs" / "s").glob("*/run.json")
    return RunDir(path.parent)


def stop_and_start_again(folder: Path, launcher: str, processes: int, *command: str) -> RunDir:
    """Start a command, stop all of its processes, and start it again to its end."""
    assert start(launcher, *command) == 0
    run = only_run(folder)
    wait_until(lambda: len(list(run.checkpoints.glob("started-*"))) == processes)
    assert submit_py.main(["cancel", "--graceful", f"s/{run.name}"]) == 0
    (stopped,) = settled(folder / "runs").values()
    assert (stopped.cause, stopped.message) == ("stopped", "exited with code 0 after its stop signal")
    assert start(launcher, *command) == 0
    (done,) = settled(folder / "runs").values()
    assert (done.state, done.attempts) == ("done", 2)
    return run


@pytest.mark.parametrize(("launcher", "processes"), [("node", 2), ("rank", 4)])
def test_processes_get_their_variables_and_are_stopped_and_started_again(
    launcher: str, processes: int, folder: Path
) -> None:
    """A shell would die of the signal; its child gets it. The copy of an executable can be executed."""
    Path("run.sh").chmod(0o755)
    names = NAMES[launcher]
    run = stop_and_start_again(folder, launcher, processes, "./run.sh", "{checkpoint_dir}", *names)
    logs = [run.attempt(1).rank_log(number).read_text().splitlines() for number in range(processes)]
    expected = {
        "node": [["0", "2", None], ["1", "2", None]],
        "rank": [["0", "4", "0", "2", None], ["1", "4", "1", "2", None],
                 ["2", "4", "0", "2", None], ["3", "4", "1", "2", None]],
    }  # fmt: skip
    assert [json.loads(log[0]) for log in logs] == expected[launcher]
    endpoints = {log[1] for log in logs}
    assert len(endpoints) == 1
    assert endpoints.pop().startswith("127.0.0.1:")


def test_ranks_of_another_launcher_get_the_signal_and_their_launcher_does_not(folder: Path) -> None:
    """torchrun in the command would end its ranks."""
    words = ("{checkpoint_dir}", "{nnodes}", "{node_rank}", "{master_addr}", "{master_port}")
    run = stop_and_start_again(folder, "node", 4, "bash", "inner.sh", *words)
    for number in range(2):
        first, second = (run.attempt(start).rank_log(number).read_text() for start in range(2))
        assert first.endswith("saved\n")
        ranks = [json.loads(line) for line in second.splitlines() if line.startswith("[")]
        assert sorted(ranks) == [[str(2 * number + local), "4"] for local in range(2)]


def test_the_process_of_a_launcher_without_ranks_gets_the_signal(folder: Path) -> None:
    """As `accelerate launch` starts a single process."""
    stop_and_start_again(folder, "node", 2, "wrapper.py", "program.py", "{checkpoint_dir}")


@pytest.mark.parametrize(
    ("launcher", "command", "cause", "message"),
    [
        ("node", "sh fail.sh {node_rank} 3", "crashed", "rank 1: exit code 3: no space for x"),
        ("rank", "sh fail.sh {rank} 1", "crashed", "rank 1: exit code 1: no space for x"),
        ("rank", "sh fail.sh {rank} kill", "killed", "rank 1 was ended by SIGKILL"),
        ("node", "no-such-program", "crashed", "rank 0: exit code 1: cannot start no-such-program"),
    ],
)
def test_a_failure_names_the_process_and_ends_the_others(
    launcher: str, command: str, cause: str, message: str, folder: Path
) -> None:
    lines = [
        '[ "$1" = 1 ] || exec sleep 600',
        "echo no space for x",
        "[ $2 = kill ] && kill -9 $$",
        "exit $2",
    ]
    Path("fail.sh").write_text("\n".join(lines))
    assert start(launcher, *command.split()) == 0
    (failed,) = settled(folder / "runs").values()
    assert (failed.state, failed.cause) == ("failed", cause)
    assert str(failed.message).startswith(message)
