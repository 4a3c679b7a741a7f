"""Agents as a scheduler's job: warned, ended, requeued, frozen and thawed, lost."""

from __future__ import annotations

import re
import signal
import subprocess
import time
from pathlib import Path

import psutil
import pytest

from disttrain.records.json_files import read_json, write_json, write_text
from disttrain.records.run_directory import RunDir
from jobs.core import hook, journal
from jobs.status.run_state import read_state
from jobs.submission.cancel import cancel_runs
from tests.support.jobs import WITHIN_S, FakeScheduler, started_pids, starts, submit, sweep_plan, wait_until
from tests.support.scheduler import Scheduler

pytestmark = pytest.mark.multiprocess


def planned(root: Path, mode: str, nodes: int = 1) -> Scheduler:
    submit(sweep_plan("a", nodes=nodes, mode=mode, on_end="true"), FakeScheduler(), root)
    return Scheduler(root / "scheduler", RunDir(root / "demo" / "a"), nodes)


def launched(job: Scheduler, count: int = 1) -> None:
    wait_until(lambda: len(starts(job.run)) == count)


def ended(process: subprocess.Popen[str]) -> int:
    process.communicate(timeout=WITHIN_S)
    return process.returncode


def hook_calls(job: Scheduler) -> list[str]:
    """Causes of the failures about which the hook was called."""
    records = [read_json(path) for path in hook.records_of(job.run.path.parent).glob("*.json")]
    return [failure["cause"] for record in records for failure in record["failed"]]


def change_mode(run: RunDir, mode: str) -> None:
    record = read_json(run.run_json)
    record["config"]["job"]["env"]["STANDIN"] = mode
    write_json(run.run_json, record)


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


def test_asked_to_stop_while_it_waits_it_stops(tmp_path: Path) -> None:
    job = planned(tmp_path, "leave")
    job.run.stop.touch()  # asked of an earlier submission
    process = job.start()
    launched(job)
    assert not job.run.stop.exists()
    process.send_signal(signal.SIGUSR1)
    ended(process)
    job.run.stop.touch()
    change_mode(job.run, "complete")
    ended(job.start(restart=1))
    assert job.run.stop.exists(), "for its ranks to see"


def test_cancelled_while_it_waits_it_never_starts(tmp_path: Path) -> None:
    job = planned(tmp_path, "leave")
    process = job.start()
    launched(job)
    process.send_signal(signal.SIGUSR1)
    ended(process)
    cluster = FakeScheduler()
    cancel_runs([read_state(job.run)], cluster)
    assert cluster.cancelled
    state = read_state(job.run)
    assert (state.state, state.cause, state.retryable) == ("failed", "cancelled", True)
    assert ended(job.start(restart=1)) == 93
    assert len(starts(job.run)) == 1


def test_an_older_copy_that_wakes_up_writes_nothing(tmp_path: Path) -> None:
    job = planned(tmp_path, "leave")
    old = job.start()
    launched(job)
    old.send_signal(signal.SIGSTOP)  # its node is frozen; the scheduler starts it elsewhere
    change_mode(job.run, "complete")
    assert ended(job.start(restart=1)) == 0
    before = written(job.run)
    assert read_json(job.run.attempt(0).record)["cause"] == "lost"
    old.send_signal(signal.SIGCONT)
    old.send_signal(signal.SIGTERM)
    assert ended(old) == 93
    assert written(job.run) == before
    assert job.requeues == []
    assert read_state(job.run).state == "done"
    assert ended(job.start(restart=0)) == 0, "one that comes to life before it has claimed"
    assert starts(job.run) == [(0, 0), (1, 0)]


def test_one_that_was_taken_for_dead_writes_nothing_either(tmp_path: Path) -> None:
    job = planned(tmp_path, "leave")
    process = job.start()
    launched(job)
    assert journal.revoke(job.run, 0, "lost", "submitted again", starts=1)
    process.send_signal(signal.SIGUSR1)
    assert ended(process) == 93
    assert (job.requeues, job.run.failed.exists()) == ([], False)


def written(run: RunDir) -> dict[str, bytes]:
    """All that attempts share, and the records of all of them."""
    paths = [path for path in run.path.glob("*") if path.is_file()] + list(
        run.path.glob("submissions/*.json")
    )
    paths += run.path.glob("attempts/*/attempt.json")
    return {str(path): path.read_bytes() for path in paths if path.name != "starts"}


def test_a_start_that_lacks_what_the_run_asked_for_trains_on_nothing_else(tmp_path: Path) -> None:
    job = planned(tmp_path, "leave")
    process = job.start()
    launched(job)
    process.send_signal(signal.SIGUSR1)  # it saves
    ended(process)
    (job.folder / "lacks").write_text("0 of 4 GPUs")
    assert ended(job.start(restart=1)) == 0
    assert starts(job.run) == [(0, 0)]
    outcome = job.outcome()
    assert (outcome["cause"], outcome["next"]) == ("preflight_failed", "requeue")
    assert "0 of 4 GPUs" in outcome["message"]


def test_a_restart_of_a_finished_job_fails_on_no_node(tmp_path: Path) -> None:
    job = planned(tmp_path, "complete", nodes=2)
    for restart in (0, 1):
        assert [ended(node) for node in [job.start(restart, node) for node in (0, 1)]] == [0, 0]
    assert len(job.run.attempts()) == 1


def test_lost_three_times_without_progress_is_the_end(tmp_path: Path) -> None:
    job = planned(tmp_path, "hang")
    for restart in range(3):
        process = job.start(restart)
        launched(job, restart + 1)
        process.kill()
        process.communicate()
    assert ended(job.start(restart=3)) == 93
    state = read_state(job.run)
    assert (state.state, state.cause, state.retryable) == ("failed", "lost", True)
    assert "not requeued: job.max_attempts=3 in a row without a newer checkpoint" in str(state.message)
    assert [read_json(attempt.record)["cause"] for attempt in job.run.attempts()] == ["lost"] * 3
    assert ended(job.start(restart=4)) == 93
    assert journal.is_revoked(journal.entry(job.run, 0).claims())
    # Asked for by the user it starts again, in a submission of its own.
    submit(sweep_plan("a", mode="hang", max_attempts=9), FakeScheduler(), tmp_path)
    assert read_state(job.run).state == "queued"


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


@pytest.mark.parametrize("saved", [True, False])
def test_the_job_of_a_killed_agent_is_requeued_by_the_next_step(tmp_path: Path, saved: bool) -> None:
    job = planned(tmp_path, "leave")
    job.says()
    process = job.start()
    launched(job)
    if saved:
        write_json(job.run.attempt(0).stop, {"cause": "preempted", "time": time.time(), "node": 0})
        wait_until(job.run.metrics.exists)
    process.kill()
    process.communicate()
    assert ended(job.start(after_failure=True)) == 0
    outcome = job.outcome()
    assert (outcome["cause"], outcome["next"]) == ("preempted" if saved else "lost", "requeue")
    assert (job.requeues, hook_calls(job)) == (["0"], [])
    assert read_state(job.run).state == "queued"


@pytest.mark.parametrize("state", ["closed", "ended by the scheduler", "superseded", "not started"])
def test_the_step_after_a_failure_leaves_other_ends_alone(tmp_path: Path, state: str) -> None:
    job = planned(tmp_path, "fail" if state == "closed" else "hang")
    job.says(running=state != "ended by the scheduler")
    if state != "not started":
        process = job.start()
        launched(job)
        if state != "closed":
            process.kill()
        process.communicate()
    if state == "superseded":
        assert journal.claim(job.run, 0, process={}, job_id=job.job_id, code_hash="", restart=1) == 1
    before = written(job.run)
    assert ended(job.start(after_failure=True)) == 1
    assert (written(job.run), job.requeues) == (before, [])


def test_the_step_after_a_failure_repeats_a_requeue_that_was_decided(tmp_path: Path) -> None:
    job = planned(tmp_path, "leave")
    job.says()
    (job.folder / "silent").touch()
    process = job.start()
    launched(job)
    process.send_signal(signal.SIGUSR1)
    wait_until(job.run.failed.exists)
    process.kill()  # while the controller does not answer
    process.communicate()
    (job.folder / "silent").unlink()
    assert ended(job.start(after_failure=True)) == 0
    assert (job.requeues, job.outcome()["cause"]) == (["0"], "preempted")
