"""Order of writes, flushes and renames of a checkpoint, and a process that is killed before each of them."""

import json
import os
import shutil
import signal
import sys
from dataclasses import dataclass

import pytest
import torch

from disttrain.checkpoint import folder as folders
from disttrain.checkpoint import storage
from disttrain.checkpoint.resume import newest_intact
from disttrain.checkpoint.saver import CheckpointSaver
from disttrain.checkpoint.share import CapturedState
from disttrain.config.sections.checkpoint import CheckpointConfig
from disttrain.records.checkpoint import committed_path, committed_paths
from disttrain.records.run_directory import RunDir
from disttrain.runtime.process_group import World
from tests.support.manifests import manifest

ALONE = World(rank=0, size=1, local_rank=0, local_size=1, device=torch.device("cpu"), backend=None)
WITHIN_S = 120


def saver(run, asynchronous=False):
    """The saver of attempt 0, whose tensors hold the step. It keeps one checkpoint."""
    attempt = run.attempt(0)
    attempt.path.mkdir(parents=True, exist_ok=True)
    attempt.steps(0).write_text("{}\n")
    config = CheckpointConfig(every_steps=1, keep=1, asynchronous=asynchronous)

    def capture():
        return CapturedState({"model.w": torch.full((9,), float(made.step))}, {})

    made = CheckpointSaver(run.checkpoints, config, attempt, ALONE, capture, manifest(step=0), 0)
    return made


def save(run, step):
    made = saver(run)
    made.save(step, None)
    made.close()
    assert made.failed == 0


@dataclass(frozen=True)
class Event:
    """A change of the file system that is about to be made."""

    kind: str
    """`write` (opened for writing), `sync`, `rename`, or the name of another call."""
    path: str
    target: str = ""
    size: int = 0
    """Bytes of the file, of a `sync`."""


def run_child(act, below, kill_at=None):
    """Run `act` in a forked process, and return its changes below `below`, or kill it before one of them."""
    out, into = os.pipe()
    pid = os.fork()
    if pid == 0:
        signal.alarm(WITHIN_S)
        events = []
        try:
            record_events(events, str(below), kill_at)
            act()
            os.write(into, json.dumps([vars(event) for event in events]).encode())
        finally:
            os._exit(len(events) == 0)
    os.close(into)
    with os.fdopen(out, "rb") as pipe:
        text = pipe.read()
    status = os.waitpid(pid, 0)[1]
    code = os.waitstatus_to_exitcode(status)
    if kill_at is not None:
        assert code == -signal.SIGKILL, "it ended before it was killed"
        return []
    assert code == 0
    return [Event(**event) for event in json.loads(text)]


def record_events(events, below, kill_at):
    """Append each change below a folder to `events`, from now on and in this process."""

    def add(event):
        if event.path.startswith(below) or not os.path.isabs(event.path):
            if len(events) == kill_at:
                os.kill(os.getpid(), signal.SIGKILL)
            events.append(event)

    def audit(name, arguments):
        if name == "open" and arguments[2] & (os.O_WRONLY | os.O_RDWR):
            add(Event("write", str(arguments[0])))
        elif name in ("os.rename", "os.link"):
            add(Event("rename", *map(str, arguments[:2])))
        elif name in ("os.mkdir", "os.remove", "os.rmdir"):
            add(Event(name, str(arguments[0])))

    fsync = os.fsync

    def sync(descriptor):
        add(Event("sync", os.readlink(f"/proc/self/fd/{descriptor}"), size=os.fstat(descriptor).st_size))
        fsync(descriptor)

    os.fsync = sync
    sys.addaudithook(audit)


def test_everything_is_on_disk_before_the_rename_that_commits(tmp_path):
    run = RunDir(tmp_path / "run")
    events = run_child(lambda: save(run, 1), tmp_path)
    committed = committed_path(run.checkpoints, 1)
    temporary = folders.temporary_path(run.checkpoints, 1, attempt=0)
    commit = events.index(Event("rename", str(temporary), str(committed)))
    before, after = events[:commit], events[commit + 1 :]

    synced = {event.path: number for number, event in enumerate(before) if event.kind == "sync"}
    written_as = {event.target: event.path for event in before if event.kind == "rename"}
    for file in committed.iterdir():
        name = str(temporary / file.name)
        number = max(synced.get(name, -1), synced.get(written_as.get(name, ""), -1))
        assert number >= 0, f"{file.name} is not flushed"
        assert before[number].size == file.stat().st_size, f"{file.name} is flushed before its end"
        assert Event("write", name) not in before[number:]
    assert before[-1].path == str(temporary)  # nothing is added to the folder after its names are on disk
    assert before[-1].kind == "sync"
    records = run.attempt(0).steps(0)
    assert before[synced[str(records)]].size == records.stat().st_size
    assert [(event.kind, event.path) for event in after[:2]] == [
        ("sync", str(run.checkpoints)),
        ("sync", str(run.path)),  # the run's first checkpoint created the folder
    ]


def test_a_process_killed_at_any_point_leaves_the_old_checkpoint_or_the_new(tmp_path):
    save(RunDir(tmp_path / "prepared"), 1)

    def prepared(name):
        return RunDir(shutil.copytree(tmp_path / "prepared", tmp_path / name))

    run = prepared("whole")
    events = run_child(lambda: save(run, 2), tmp_path)
    commit = next(n for n, event in enumerate(events) if event.target.endswith("step-00000002"))
    for point in range(len(events)):
        run = prepared(str(point))
        run_child(lambda run=run: save(run, 2), tmp_path, kill_at=point)
        following = run.attempt(1)
        following.path.mkdir()
        found = newest_intact(run.checkpoints, following, ALONE)
        expected = 2 if point > commit else 1
        assert found is not None, events[point]
        assert found.manifest.step == expected, events[point]
        loaded = {"model.w": torch.zeros(9)}
        storage.load_tensors(loaded, found)
        assert loaded["model.w"].tolist() == [float(expected)] * 9
        left = {path.name for path in run.checkpoints.iterdir()}
        assert left <= {"step-00000001", "step-00000002"}, events[point]


def test_a_later_attempt_that_begins_while_files_are_written_prevents_the_commit(tmp_path):
    run = RunDir(tmp_path / "run")
    made = saver(run, asynchronous=True)
    made.save(1, None)
    run.attempt(1).path.mkdir()
    made.close()
    assert (made.failed, made.committed_step) == (1, None)
    assert committed_paths(run.checkpoints) == []


@pytest.mark.parametrize("lost", [False, True])
def test_without_its_step_records_a_checkpoint_is_not_committed(tmp_path, lost):
    run = RunDir(tmp_path / "run")
    made = saver(run)
    if lost:
        run.attempt(0).steps(0).unlink()
    made.save(1, None)
    made.close()
    assert made.failed == lost
