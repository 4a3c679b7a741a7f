"""The queue of this host, and the scheduler of jobs that wait in it."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from disttrain.errors import ConfigError
from disttrain.records.run_directory import RunDir
from jobs.core import journal, processes
from jobs.schedulers.interface import Submission
from jobs.schedulers.local import fifo_queue
from jobs.schedulers.local.scheduler import LocalScheduler, ticket_label
from tests.support.jobs import in_a_fork, wait_for, wait_until


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DISTTRAIN_QUEUE_DIR", str(tmp_path / "queue"))
    return tmp_path / "queue"


def take_turn(ticket: int, order: Path = Path(os.devnull)) -> None:
    with fifo_queue.hold(ticket) as slot:
        assert slot is not None
        slot.wait_turn()
        with open(order, "a") as file:
            file.write(f"{ticket}\n")


def test_tickets_only_grow_also_when_the_clock_goes_back(monkeypatch):
    first = fifo_queue.take({})
    monkeypatch.setattr(time, "time", lambda: 5.0)
    assert fifo_queue.take({}) == first + 1


def test_the_folder_is_of_this_user_alone(folder):
    fifo_queue.take({})
    assert folder.stat().st_mode & 0o777 == 0o700
    folder.chmod(0o777)
    with pytest.raises(fifo_queue.QueueFolderError, match="only user"):
        fifo_queue.take({})


def test_a_folder_that_cannot_be_used_is_bad_input(folder):
    (folder / "counter").mkdir(parents=True)
    with pytest.raises(ConfigError, match=r"cannot use .*: Is a directory"):
        fifo_queue.take({})
    (folder / "counter").rmdir()
    folder.rmdir()
    folder.touch()
    with pytest.raises(ConfigError, match=r"cannot use .*: File exists"):
        fifo_queue.find({})


def test_a_ticket_is_expected_then_held_then_expired():
    ticket = fifo_queue.take({"for": "a"})
    assert (fifo_queue.ticket_state(ticket), fifo_queue.find({"for": "a"})) == ("expected", None)
    with fifo_queue.hold(ticket):
        assert (fifo_queue.ticket_state(ticket), fifo_queue.find({"for": "a"})) == ("held", ticket)
        assert fifo_queue.find({"for": "b"}) is None
    assert fifo_queue.ticket_state(ticket) == "expired"
    with fifo_queue.hold(ticket) as slot:
        assert slot is None


def test_turns_come_in_the_order_of_tickets(tmp_path):
    """Whatever the order in which the jobs start."""
    tickets = [fifo_queue.take({}) for _ in range(4)]
    order = tmp_path / "order"
    pids = [in_a_fork(lambda ticket=ticket: take_turn(ticket, order)) for ticket in reversed(tickets)]
    assert [wait_for(pid) for pid in pids] == [0] * 4
    assert [int(line) for line in order.read_text().split()] == tickets
    assert not list((tmp_path / "queue").glob("*.ticket"))


def test_a_dead_job_frees_the_queue():
    first, second = fifo_queue.take({}), fifo_queue.take({})

    def die() -> None:
        with fifo_queue.hold(first):
            os._exit(9)

    assert wait_for(in_a_fork(die)) == 9
    take_turn(second)
    assert fifo_queue.ticket_state(first) == "expired"


def test_a_job_that_never_starts_is_not_waited_for_long(monkeypatch):
    absent, ticket = fifo_queue.take({}), fifo_queue.take({})
    monkeypatch.setattr(fifo_queue, "GRACE_S", -1.0)
    take_turn(ticket)
    with fifo_queue.hold(absent) as slot:
        assert slot is None


def test_a_settled_job_is_not_waited_for_at_all(tmp_path):
    fifo_queue.take({"settled_by": str(tmp_path / "claim")})
    ticket = fifo_queue.take({})
    pid = in_a_fork(lambda: take_turn(ticket))
    wait_until(lambda: fifo_queue.ticket_state(ticket) == "held")
    (tmp_path / "claim").touch()
    assert wait_for(pid) == 0


def queued(run: RunDir) -> str:
    """The job of a run, whose ticket is taken."""
    run.submissions.mkdir(parents=True)
    return f"{processes.host()}:{fifo_queue.take(ticket_label(run, 0))}"


def test_a_waiting_job_is_pending_until_it_is_cancelled(tmp_path):
    run, scheduler = RunDir(tmp_path / "demo" / "a"), LocalScheduler()
    job = queued(run)
    elsewhere = f"elsewhere:{job.rpartition(':')[2]}"
    scheduler.cancel({elsewhere: None})
    states = [each.status for each in scheduler.poll([job, elsewhere]).values()]
    assert states == ["pending", "unknown"], "another host has a queue of its own"
    scheduler.cancel({job: None})
    assert scheduler.poll([job])[job].status == "ended"
    assert (journal.entry(run, 0).read("claim") or {})["cause"] == "cancelled"


def test_a_job_that_has_claimed_its_submission_is_running(tmp_path):
    run = RunDir(tmp_path / "demo" / "a")
    job = queued(run)
    with fifo_queue.hold(int(job.rpartition(":")[2])):
        states = []
        for _ in range(2):
            states.append(LocalScheduler().poll([job])[job].status)
            journal.entry(run, 0).path("claim").touch()
    assert states == ["pending", "running"]


def test_a_job_that_ends_while_it_is_cancelled_is_no_error(tmp_path, monkeypatch):
    run = RunDir(tmp_path / "demo" / "a")
    job = queued(run)
    journal.write_holder(
        run, 0, processes.current_process().as_dict() | {"pid": 2**22 + 1}
    )  # none is as high
    monkeypatch.setattr(processes, "is_alive", lambda recorded: True)  # so it was a moment ago
    LocalScheduler().cancel({job: None})


@pytest.mark.parametrize(
    ("device", "ranks", "uses"), [("auto", 2, True), ("auto", 3, False), ("cuda", 3, True)]
)
def test_on_this_machine_auto_takes_the_gpus_if_there_are_enough(monkeypatch, device, ranks, uses):
    monkeypatch.setattr("jobs.schedulers.local.scheduler.count_gpus", lambda: 2)
    assert LocalScheduler().uses_gpus(device, ranks) is uses


def test_a_command_of_older_code_waits_in_the_queue_and_imports_its_own_code(folder, tmp_path):
    older, written = tmp_path / "code", tmp_path / "written"
    (older / "jobs").mkdir(parents=True)
    (older / "jobs" / "__init__.py").touch()  # without the modules of this code
    program = "import jobs, pathlib, sys\npathlib.Path(sys.argv[1]).write_text(jobs.__file__)\n"
    (older / "submit.py").write_text(program)
    report = RunDir(tmp_path / "demo" / ".report")
    report.submissions.mkdir(parents=True)
    command = [str(older / "submit.py"), str(written)]
    LocalScheduler().submit_after(Submission(report, 0, "tag"), command, [], None)
    wait_until(lambda: not list(folder.glob("*.ticket")))
    log = (report.submissions / "0000.log").read_text()
    assert written.exists(), log
    assert written.read_text() == str(older / "jobs" / "__init__.py")
