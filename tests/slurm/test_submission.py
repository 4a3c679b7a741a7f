"""Submitting to a real Slurm: killed half way, while the controller is away, against its limits, from within
a job; and the job that writes the report."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from disttrain.records.json_files import read_json
from disttrain.records.run_directory import RunDir
from jobs.core import journal
from jobs.minicluster import discovery
from jobs.schedulers.interface import Submission, submission_tag
from jobs.schedulers.slurm.scheduler import SlurmScheduler
from jobs.status.run_state import read_runs
from jobs.submission import report_job
from jobs.submission.cancel import cancel_runs
from tests.support.jobs import (
    SMALL,
    STANDIN,
    WITHIN_S,
    ended_afterwards,
    repeats,
    settled,
    starts,
    states,
    status,
    submit,
    wait_until,
)
from tests.support.minicluster import SUBMIT, MiniCluster, cluster_verb
from tests.support.requeued import nothing_starts

RECORDING = STANDIN.with_name("recording_launcher.sh")
_SWEEP = ("sweep", "small.yaml", "--nodes", "1", "--cluster", "slurm")


@pytest.fixture
def sbatch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Puts a script in the place of sbatch, which finds the real one in `$sbatch`."""

    def replace(script: str) -> None:
        real = next(
            folder
            for folder in map(Path, os.environ["PATH"].split(":"))
            if (folder / "sbatch").exists() and folder != tmp_path / "bin"
        )
        path = tmp_path / "bin" / "sbatch"
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"#!/bin/sh\nsbatch={real}/sbatch\n{script}\n")
        path.chmod(0o755)
        monkeypatch.setenv("PATH", f"{path.parent}:{os.environ['PATH']}")

    return replace


def submit_py(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(SUBMIT), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=WITHIN_S)


def jobs_of(cluster: MiniCluster, wanted: str) -> list[str]:
    """All jobs with this comment, over or not."""
    listed = cluster.ask("squeue", "--noheader", "--array", "--states=all", "-o", "%i|%k")
    pairs = (line.partition("|")[::2] for line in listed.split())
    return sorted(job for job, comment in pairs if comment == wanted)


@pytest.mark.parametrize(("count", "of_node"), [(1, 1), (3, 1), (4, 2)])
def test_submit_py_killed_between_sbatch_and_its_record(
    count: int, of_node: int, root: Path, on_slurm: MiniCluster, sbatch: Callable[[str], None]
) -> None:
    packing = ("--set", f"resources.runs_per_node={of_node}")
    command = (*_SWEEP, "--repeats", str(count), "--no-report", *packing)
    sbatch('$sbatch "$@" && kill -KILL $PPID')
    assert submit_py(*command).returncode == -signal.SIGKILL
    runs = [state.run for state in read_runs(root)]
    assert len(runs) == count
    assert not any(journal.entry(run, 0).read("receipt") for run in runs)
    sbatch('exec $sbatch "$@"')
    again = submit_py(*command)
    assert again.returncode == 0, again.stderr
    assert "submitted" not in again.stdout
    ended = settled(root)
    assert {state.state for state in ended.values()} == {"done"}
    assert [starts(run) for run in runs] == [[(0, 0)]] * count
    jobs = jobs_of(on_slurm, submission_tag(runs[0], 0))
    if of_node > 1:
        jobs = [f"{job}/{place}" for job in jobs for place in range(of_node)]
    assert len(jobs) == count
    assert [state.job_id for state in ended.values()] == jobs


def test_an_array_half_of_whose_receipts_are_lost(root: Path, on_slurm: MiniCluster) -> None:
    with nothing_starts(on_slurm):
        actions = submit(repeats(4, "a"), SlurmScheduler(), root)
        array = str(actions[0].job_id).partition("_")[0]
        assert [action.job_id for action in actions] == [f"{array}_{index}" for index in range(4)]
        for name in ("a-r1", "a-r3"):
            journal.entry(RunDir(root / "demo" / name), 0).path("receipt").unlink()
        assert [action.kind for action in submit(repeats(4, "a"), SlurmScheduler(), root)] == [
            "in_progress"
        ] * 4
        assert [state.job_id for state in states(root).values()] == [f"{array}_{index}" for index in range(4)]
        cancel_runs([states(root)["a-r1"]], SlurmScheduler())
        wait_until(lambda: status(f"{array}_1") == "ended")
        assert status(f"{array}_0") == "pending"
    ended = settled(root)
    assert [state.state for state in ended.values()] == ["done", "failed", "done", "done"]
    assert [len(starts(state.run)) for state in ended.values()] == [1, 0, 1, 1]


def test_a_job_taken_by_a_controller_that_was_too_slow_to_say_so(
    root: Path, on_slurm: MiniCluster, sbatch: Callable[[str], None]
) -> None:
    sbatch(
        '$sbatch "$@" >/dev/null\n'
        "echo 'sbatch: error: Batch job submission failed: Socket timed out on send/recv' >&2; exit 1"
    )
    actions = submit(repeats(2, "a"), SlurmScheduler(), root)
    comment = submission_tag(RunDir(root / "demo" / "a-r0"), 0)
    assert [action.job_id for action in actions] == jobs_of(on_slurm, comment)
    assert [state.state for state in settled(root).values()] == ["done", "done"]


@pytest.mark.slow
def test_the_controller_is_away_for_a_moment(
    root: Path, faulty: MiniCluster, sbatch: Callable[[str], None], tmp_path: Path
) -> None:
    called, go, said = (tmp_path / name for name in ("called", "go", "said"))
    sbatch(f'mkdir {called} 2>/dev/null && while [ ! -e {go} ]; do sleep 0.1; done\nexec $sbatch "$@"')
    command = [sys.executable, str(SUBMIT), *_SWEEP, "--no-report"]
    with open(said, "w") as file:
        submitter = subprocess.Popen(command, stdout=file, stderr=file)
    wait_until(called.exists)
    faulty.kill_controller()
    go.touch()
    wait_until(lambda: "trying again in" in said.read_text())
    faulty.start_controller()
    assert submitter.wait(timeout=WITHIN_S) == 0, said.read_text()
    (ended,) = settled(root).values()
    assert (ended.state, len(starts(ended.run))) == ("done", 1)
    assert jobs_of(faulty, submission_tag(ended.run, 0)) == [ended.job_id]


@pytest.fixture
def limited(
    can_have_clusters: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[MiniCluster]:
    """A cluster that takes arrays of up to three jobs, and holds users to the limits in accounting."""
    name = f"l{os.getpid()}"
    try:
        cluster = MiniCluster.up(name, "--nodes", "1", "--short-timeouts")
        cluster.kill_controller()
        with open(cluster.cluster.folder.slurm_conf, "a") as file:
            file.write("MaxArraySize=3\nAccountingStorageEnforce=limits\n")
        cluster.start_controller()
        for variable in ("SLURM_CONF", "PATH"):
            monkeypatch.setenv(variable, cluster.env[variable])
        monkeypatch.setenv("DISTTRAIN_LAUNCHER", str(STANDIN))
        monkeypatch.chdir(tmp_path)
        Path("small.yaml").write_text(SMALL)
        yield cluster
    finally:
        if name in discovery.cluster_names():
            cluster_verb("down", "--name", name)


def test_slurm_s_limits_are_kept_and_what_is_left_is_submitted_later(
    limited: MiniCluster, tmp_path: Path
) -> None:
    modify = ("sacctmgr", "--immediate", "modify")
    limited.ask(*modify, "user", "root", "set", "maxsubmitjobs=5")
    command = (*_SWEEP, "--repeats", "7", "--no-report")
    first = submit_py(*command)
    assert first.returncode == 1, first.stderr
    assert "7 runs: 5 submitted, 2 deferred" in first.stdout
    assert first.stderr.splitlines()[-1] == (
        "2 runs deferred: the limit of jobs (AssocMaxSubmitJobLimit) is reached; "
        "the same command submits them later"
    )
    jobs = [state.job_id or "" for state in states(tmp_path / "runs").values()]
    assert [job.partition("_")[2] for job in jobs] == ["0", "1", "2", "", "", "", ""]
    ended = settled(tmp_path / "runs")
    assert [state.state for state in ended.values()] == ["done"] * 5 + ["planned"] * 2
    wait_until(lambda: limited.ask("squeue", "--noheader") == "")
    # A limit that we do not read, but Slurm keeps.
    limited.ask(*modify, "qos", "normal", "set", "grpsubmitjobs=1")
    limited.ask("scontrol", "update", "partitionname=gpu", "state=down")
    second = submit_py(*command)
    assert second.returncode == 1, second.stderr
    assert "7 runs: 1 submitted, 5 done, 1 deferred" in second.stdout
    assert "1 run deferred: the limit of jobs (" in second.stderr
    limited.ask("scontrol", "update", "partitionname=gpu", "state=up")
    assert settled(tmp_path / "runs")["n1-r5"].state == "done"
    assert states(tmp_path / "runs")["n1-r6"].state == "planned"
    # One that fewer jobs would not undo.
    limited.ask(*modify, "qos", "normal", "set", "grpsubmitjobs=-1", "maxwall=00:01:00", "flags=DenyOnLimit")
    third = submit_py(*command)
    assert third.returncode == 1, third.stderr
    assert "QOSMaxWallDurationPerJobLimit" in third.stderr
    assert "submits them later" not in third.stderr


def test_submitting_from_within_an_allocation(root: Path, on_slurm: MiniCluster) -> None:
    stale = {
        "SLURM_CPU_BIND": "quiet,mask_cpu:0x1",
        "SLURM_NTASKS": "7",
        "SBATCH_PARTITION": "nowhere",
        "SRUN_CPUS_PER_TASK": "9",
        "PMI_RANK": "5",
        "RANK": "5",
        "LOCAL_RANK": "5",
        "WORLD_SIZE": "99",
        "MASTER_ADDR": "nowhere",
        "MASTER_PORT": "1",
    }
    variables = [f"{name}={value}" for name, value in stale.items()]
    run = ["run", "small.yaml", "--nodes", "2", "--cluster", "slurm", "--no-report"]
    within = ["env", *variables, f"DISTTRAIN_LAUNCHER={RECORDING}", sys.executable, str(SUBMIT), *run]
    on_slurm.ask("salloc", "--nodes=1", "--gpus-per-node=1", "srun", "--ntasks=1", *within, cwd=root.parent)
    (state,) = settled(root).values()
    assert (state.state, state.message) == ("done", None)
    for node in (0, 1):
        lines = (state.run.path / f"seen-{node}").read_text().splitlines()
        env = dict(line.partition("=")[::2] for line in lines)
        assert {name: value for name, value in stale.items() if env.get(name) == value} == {}
        assert (env["SLURM_JOB_ID"], env["SLURM_NTASKS"]) == (state.job_id, "2")


def test_a_job_that_follows_an_array_waits_for_its_requeued_task(
    on_slurm: MiniCluster, tmp_path: Path
) -> None:
    go = tmp_path / "go"
    work = f"echo x >> {tmp_path}/started-$SLURM_ARRAY_TASK_ID; while [ ! -e {go} ]; do sleep 0.2; done"
    array = on_slurm.ask(
        "sbatch", "--parsable", "--requeue", "--array=0-1", "--output=/dev/null", "--wrap", work, cwd=tmp_path
    ).strip()

    def started(index: int) -> int:
        path = tmp_path / f"started-{index}"
        return len(path.read_text().split()) if path.exists() else 0

    wait_until(lambda: started(0) == started(1) == 1)
    cluster, folder = SlurmScheduler(), RunDir(tmp_path / "demo" / ".report")
    number = journal.write_intent(folder, {"handle": submission_tag(folder, 0), "index": None})
    written = tmp_path / "written"
    command = ["-c", f"open({str(written)!r}, 'x').write(str({{}}))"]
    tasks = [f"{array}_0", f"{array}_1"]
    after = cluster.submit_after(Submission.announced(folder, number), command, tasks, None)
    try:
        assert cluster.find([Submission.announced(folder, number)]) == [after]
        on_slurm.ask("scontrol", "requeue", f"{array}_1")
        wait_until(lambda: started(1) == 2)
        assert started(0) == 1, "the other task goes on undisturbed"
        assert status(after) == "pending"
        assert not written.exists()
        go.touch()
        wait_until(written.exists)
    finally:
        cluster.cancel({array: None, after: submission_tag(folder, 0)})


def test_the_end_of_a_sweep_that_nobody_waits_for(
    root: Path, on_slurm: MiniCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    launcher, calls = tmp_path / "launcher", tmp_path / "calls"
    launcher.write_text(f'#!/bin/sh\ncase "$*" in *n1-start_from*) exit 1 ;; esac\nexec {STANDIN} "$@"\n')
    launcher.chmod(0o755)
    monkeypatch.setenv("DISTTRAIN_LAUNCHER", str(launcher))
    hook = ("--on-end", f'echo "$DISTTRAIN_EVENT $DISTTRAIN_STATES" >> {calls}')
    sweep = (*_SWEEP, *hook, "--slurm", "mail_user=somebody", "mail_type=END,FAIL")
    with nothing_starts(on_slurm):
        on_slurm.submit(*sweep, cwd=tmp_path)
        on_slurm.submit(*sweep, "--set", "checkpoint.start_from=null,/missing/step-00000001", cwd=tmp_path)
        folder = report_job.journal_of(root, "small")
        first, second = ((entry.read("receipt") or {})["job_id"] for entry in journal.entries(folder))
        wait_until(lambda: status(first) == "ended")
        assert status(second) == "pending"
    wait_until(lambda: status(second) == "ended")
    assert {state.state for state in states(root).values()} == {"done", "failed"}
    report = read_json(root / "small" / "report" / "report.json")
    assert len(report["excluded_runs"]) == 2, "stand-ins measure nothing"
    failed, ended = calls.read_text().splitlines()
    assert failed.startswith("run_failed failed=1 ") or failed.startswith("run_failed done=")
    assert ended in ("sweep_end done=1 failed=1", "sweep_end failed=1 done=1")
    log = on_slurm.cluster.folder.mail_log
    # Slurm's controller starts the mail program beside the end of the job; the first mail makes the log
    wait_until(lambda: log.exists() and f"Slurm Job_id={second} " in log.read_text())
    (mail,) = (line for line in log.read_text().splitlines() if "somebody" in line)
    assert f"Job_id={second} Name=report-small Failed" in mail, "more than one mail, or not about a failure"


@pytest.mark.slow
def test_the_report_job_adds_repeats(on_slurm: MiniCluster, tmp_path: Path) -> None:
    (tmp_path / "small.yaml").write_text(SMALL)
    root = tmp_path / "runs"
    with ended_afterwards(root, SlurmScheduler()):
        on_slurm.submit(*_SWEEP, "--repeats", "auto:0.0001%:4", cwd=tmp_path)
        wait_until((root / "small" / "report" / "report.html").exists)
    runs = states(root)
    assert {name: (state.state, state.attempts) for name, state in runs.items()} == {
        f"n1-r{repeat}": ("done", 1) for repeat in range(4)
    }
    ids = [
        (each.read("intent") or {})["after"] for each in journal.entries(report_job.journal_of(root, "small"))
    ]
    assert ids == [[runs[f"n1-r{repeat}"].job_id for repeat in range(3)], [runs["n1-r3"].job_id]]
