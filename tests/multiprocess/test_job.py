"""Agents as a scheduler's job: warned, ended, requeued, out of memory."""

from __future__ import annotations

import re
import signal
import time
from pathlib import Path

import psutil
import pytest

from disttrain.records.json_files import read_json, write_json, write_text
from jobs.core import journal
from jobs.status.run_state import read_state
from tests.support.jobs import started_pids, starts, wait_until
from tests.support.scheduled_jobs import change_mode, ended, hook_calls, launched, planned
from tests.support.scheduler import Scheduler

pytestmark = pytest.mark.multiprocess


@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGUSR2, signal.SIGTERM], ids=lambda n: n.name)
@pytest.mark.parametrize("answers", [True, False], ids=["running", "silent"])
def test_a_warned_job_leaves_and_goes_on(tmp_path: Path, number: int, answers: bool) -> None:
    job = planned(tmp_path, "leave")
    if answers:
        job.says(end=time.time() + 3600)
    first = job.start()
    launched(job)
    first.send_signal(number)
    assert ended(first) == 0
    assert job.requeues == ["0"]
    assert (job.outcome()["cause"], job.outcome()["next"]) == ("preempted", "requeue")
    waiting = read_state(job.run)
    assert (waiting.state, waiting.message) == (
        "queued",
        "requeued after preempted: saved and stopped at step 3 of 9",
    )
    change_mode(job.run, "complete")
    assert ended(job.start(restart=1)) == 0
    assert (read_state(job.run).state, starts(job.run)) == ("done", [(0, 0), (1, 0)])
    assert [read_json(attempt.record)["restart"] for attempt in job.run.attempts()] == [0, 1]


def test_an_early_warning_of_the_time_limit_is_not_the_time_limit(tmp_path: Path) -> None:
    job = planned(tmp_path, "leave")
    job.says(end=time.time() + 100)  # ranks leave 60 s before
    process = job.start()
    launched(job)
    process.send_signal(signal.SIGUSR2)
    log = job.run.attempt(0).node_log(0)
    wait_until(lambda: "came early" in log.read_text())
    assert not job.run.attempt(0).stop.exists()
    job.says(end=time.time() + 30)  # pre-empted
    process.send_signal(signal.SIGUSR2)
    assert ended(process) == 0
    assert job.requeues == ["0"]


@pytest.mark.parametrize(
    ("restarts", "cause", "code"), [(1, "preempted", 0), (0, "cancelled", 1)], ids=["taken back", "cancelled"]
)
def test_an_ended_job_says_so_and_asks_for_nothing(
    tmp_path: Path, restarts: int, cause: str, code: int
) -> None:
    job = planned(tmp_path, "hang")
    job.says(end=time.time() + 3600)
    process = job.start()
    wait_until(lambda: len(started_pids(job.run)) == 2)
    job.says(running=False, restarts=restarts)
    process.send_signal(signal.SIGTERM)
    assert ended(process) == code
    assert job.outcome()["cause"] == cause
    assert job.requeues == []
    assert read_state(job.run).state == ("queued" if restarts else "failed")
    assert not any(Path(f"/proc/{pid}").exists() for pid in started_pids(job.run))


def test_a_job_whose_batch_shell_was_killed_is_requeued(tmp_path: Path) -> None:
    job = planned(tmp_path, "hang")
    job.says(end=time.time() + 3600)
    process = job.start()
    wait_until(lambda: len(started_pids(job.run)) == 2)
    job.says(running=False, end_cause="lost")
    process.send_signal(signal.SIGTERM)
    assert ended(process) == 0
    assert (job.outcome()["cause"], job.requeues) == ("lost", ["0"])
    assert read_json(job.run.attempt(0).record)["failed_nodes"] == []
    assert read_state(job.run).state == "queued"


@pytest.mark.parametrize("first", ["launcher", "sleep"])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=lambda n: n.name)
def test_the_end_of_a_job_may_reach_the_launcher_before_the_agent(
    tmp_path: Path, first: str, number: int
) -> None:
    job = planned(tmp_path, "hang")
    job.says(end=time.time() + 3600)
    process = job.start()
    wait_until(lambda: len(started_pids(job.run)) == 2)
    launcher = psutil.Process(min(started_pids(job.run)))
    job.says(running=False)
    wait_until(lambda: "sleep" in {child.name() for child in launcher.children()})
    family = {child.name(): child for child in launcher.children()} | {"launcher": launcher}
    family[first].send_signal(signal.SIGTERM)
    wait_until(lambda: not launcher.is_running())
    process.send_signal(number)
    assert ended(process) == 1
    assert job.outcome()["cause"] == "cancelled"


@pytest.mark.parametrize("has_come", ["nowhere", "to its claim", "to its attempt"])
@pytest.mark.parametrize(("restarts", "code"), [(0, 1), (1, 0)], ids=["cancelled", "taken back"])
def test_a_node_that_waits_for_node_0_ends_with_its_job(
    tmp_path: Path, has_come: str, restarts: int, code: int
) -> None:
    job = planned(tmp_path, "hang", nodes=2)
    if has_come != "nowhere":
        assert journal.claim(job.run, 0, process={}, job_id=job.job_id, code_hash="") == 0
    if has_come == "to its attempt":  # and has not said where to meet
        write_json(job.run.attempt(0).record, {})
    job.says(running=False, restarts=restarts)
    process = job.start(node=1)
    wait_until(lambda: blocked(process.pid, signal.SIGTERM))
    process.send_signal(signal.SIGTERM)
    assert ended(process) == code
    assert starts(job.run) == []


def test_a_warning_while_it_waits_for_node_0_is_for_the_ranks(tmp_path: Path) -> None:
    job = planned(tmp_path, "leave", nodes=2)
    job.says(end=time.time() + 3600)
    other = job.start(node=1)
    wait_until(lambda: blocked(other.pid, signal.SIGTERM))
    other.send_signal(signal.SIGTERM)
    assert ended(job.start()) == 0
    assert (job.outcome()["cause"], job.requeues) == ("preempted", ["0"])
    job.takes_back(other)
    assert ended(other) == 0


@pytest.mark.parametrize("refuses", [False, True])
def test_nodes_stay_while_node_0_asks_for_the_requeue(tmp_path: Path, refuses: bool) -> None:
    job = planned(tmp_path, "leave", nodes=2)
    job.says(end=time.time() + 3600)
    (job.folder / "silent").touch()
    if refuses:
        (job.folder / "refuses").touch()
    first, other = job.start(), job.start(node=1)
    launched(job, 2)
    first.send_signal(signal.SIGUSR1)
    wait_until(lambda: read_json(job.run.attempt(0).record)["next"] == "requeue")
    other.send_signal(signal.SIGTERM)  # while it runs, this is but a warning
    said = job.run.attempt(0).node_log(1)
    wait_until(lambda: "waiting while node 0 requests the requeue" in said.read_text())
    assert other.poll() is None
    (job.folder / "silent").unlink()
    assert ended(first) == (75 if refuses else 0)
    if not refuses:
        job.takes_back(other)
    assert ended(other) == 0


def blocked(pid: int, number: int) -> bool:
    (mask,) = re.findall(r"^SigBlk:\s*(\w+)$", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    return bool(int(mask, 16) >> number - 1 & 1)


def test_a_requeue_that_is_refused(tmp_path: Path) -> None:
    job = planned(tmp_path, "leave")
    (job.folder / "refuses").touch()
    process = job.start()
    launched(job)
    process.send_signal(signal.SIGTERM)
    assert ended(process) == 75
    state = read_state(job.run)
    assert (state.state, state.cause, state.retryable) == ("failed", "preempted", True)
    assert "could not be requeued" in str(state.message)
    assert hook_calls(job) == ["preempted"]


def test_a_crash_without_progress_is_not_tried_again(tmp_path: Path) -> None:
    job = planned(tmp_path, "fail")
    assert ended(job.start()) == 69
    assert job.requeues == []
    assert "the run has no checkpoint yet" in str(read_state(job.run).message)
    assert hook_calls(job) == ["launch_failed"]


@pytest.mark.parametrize("before", [2, 3], ids=["more than before", "no more than before"])
def test_a_rank_that_the_kernel_ended_for_want_of_memory(tmp_path: Path, before: int) -> None:
    job = planned(tmp_path, "out-of-memory")
    events = group_of(job, f"low 0\nhigh 5\nmax 0\noom 7\noom_kill {before}\noom_group_kill 9\n")
    record = read_json(job.run.run_json)
    record["config"]["job"]["env"]["EVENTS"] = str(events)
    write_json(job.run.run_json, record)
    code = ended(job.start())
    cause, counts = ("out_of_memory", 93) if before == 2 else ("killed", 1)
    assert (job.outcome()["cause"], code) == (cause, counts)
    assert read_state(job.run).retryable == (cause == "killed")


def group_of(job: Scheduler, events: str) -> Path:
    """A control group for its agents; the file that counts what the kernel did."""
    machine = job.folder / "machine"
    write_text(machine / "proc/self/cgroup", "0::/job_42/task_0\n")
    path = machine / "sys/fs/cgroup/job_42/task_0/memory.events"
    write_text(path, events)
    return path


def test_a_node_that_fails_takes_the_others_along(tmp_path: Path) -> None:
    job = planned(tmp_path, "fail-on-1", nodes=2)
    nodes = [job.start(node=node) for node in (0, 1)]
    codes = [ended(process) for process in nodes]
    log = job.run.attempt(0).node_log(0).read_text()
    assert codes == [69, 0], f"node 0 speaks for all: {log}"
    record = read_json(job.run.attempt(0).record)
    assert record["exit_codes"]["1"] == 1
    assert record["exit_codes"]["0"] != 0
    assert "node 1 has ended with code 1" in log
