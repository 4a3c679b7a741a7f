"""Runs side by side in one job: batches, shares of the node, the wait for the others, cancel, refusals."""

from __future__ import annotations

import dataclasses
import difflib
import os
import subprocess
import threading
import time
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from disttrain.config.config_tree import Config
from disttrain.records.gpu_hours import devices_of
from disttrain.records.json_files import read_json, write_json
from disttrain.records.run_directory import RunDir
from jobs.core import journal
from jobs.core.packing import Packing, share_of_processors
from jobs.core.processes import current_process
from jobs.node.allocation import Allocation, NodeContext
from jobs.node.ending import request_requeue
from jobs.schedulers.interface import Batch, Submission, SubmitQuota
from jobs.schedulers.slurm.allocation import SlurmAllocation
from jobs.schedulers.slurm.profile import Profile
from jobs.schedulers.slurm.scheduler import script_fields
from jobs.schedulers.slurm.script import render, shape_options
from jobs.status.run_state import read_state
from jobs.submission.cancel import cancel_runs
from tests.support.golden import golden
from tests.support.jobs import FakeSlurm, repeats, submit
from tests.support.scripts import SHARED, batch, config
from tests.support.states import DEAD, on_cluster
from tests.support.verbs import RUNS, ask, refused

FOUR = {"gpus_per_node": 2, "runs_per_node": 4}


@pytest.mark.parametrize(
    ("runs", "room", "batches", "some"),
    [
        (3, {}, [3], {"0": (None, 0, 3), "2": (None, 2, 3)}),
        (6, {"array": 2}, [4, 2], {"3": (None, 3, 4), "4": (None, 0, 2)}),
        (9, {"array": 2}, [8, 1], {"0": (0, 0, 4), "5": (1, 1, 4), "8": (None, None, 1)}),
        (9, {"jobs": 2, "limit": "x"}, [4, 4], {"7": (None, 3, 4)}),
    ],
)
def test_runs_of_one_shape_share_jobs_and_jobs_share_arrays(tmp_path, runs, room, batches, some):
    """The last job of a sweep has fewer runs; a run without others is alone."""
    cluster = FakeSlurm()
    cluster.packs, cluster.has_room = True, SubmitQuota(**room)
    submit(repeats(runs, "a", resources=FOUR), cluster, tmp_path)
    assert list(map(len, cluster.batches)) == batches
    for name, (index, place, of_job) in some.items():
        run = RunDir(tmp_path / "demo" / f"a-r{name}")
        intent = journal.entry(run, 0).read("intent") or {}
        assert (intent["index"], intent.get("place")) == (index, place)
        assert read_json(run.run_json).get("runs_per_job", 1) == of_job == len(intent.get("packed", "1"))


def fields(runs: int, per_job: int, root: Path = SHARED, keys: Any = None, **resources: Any) -> Any:
    site = Profile(name="x", **keys or {})
    made = batch(root, site, runs=runs, config=config(nodes=1, ranks=2))
    made.config["resources"] |= resources
    return dataclasses.replace(made, runs_per_job=per_job, logs=root / "runs" / "demo" / ".arrays")


def test_the_script_of_an_array_of_two_jobs_of_two_runs():
    alone, packed = (render(fields(4, per_job)).splitlines() for per_job in (1, 2))
    changes = [line for line in difflib.ndiff(alone, packed) if line.startswith(("+ ", "- "))]
    golden("packed.txt", "\n".join(changes) + "\n")


@pytest.mark.parametrize(
    ("profile", "resources", "requested"),
    [
        ({}, {}, {"--cpus-per-task=40", "--gpus-per-node=8"}),
        ({"cpus_per_task": 64}, {}, {"--cpus-per-task=64", "--gpus-per-node=8"}),
        ({}, {"share_gpus": True}, {"--cpus-per-task=40", "--gpus-per-node=2"}),
    ],
)
def test_a_job_requests_the_shares_of_its_runs(profile, resources, requested):
    made = fields(4, 4, keys=profile, **resources)
    options = {*shape_options(made)}
    assert requested == {each for each in options if each.split("=")[0][2:5] in ("cpu", "gpu", "gre")}


def test_each_run_has_a_step_a_log_and_an_end_of_its_own(tmp_path):
    """The second agent is killed; its step after the failure is refused. A signal ends no shell."""
    runs = [tmp_path / "runs" / "demo" / f"n2-r{number}" for number in range(3)]
    for run in runs:
        (run / "submissions").mkdir(parents=True)
    (tmp_path / "srun").write_text(
        "#!/bin/bash\n"
        'echo "$*" | grep -o -- "--after-failure\\|n2-r.*"\n'
        'case "$*" in *--after-failure*) touch closed; exit 1 ;; *n2-r1*) exit 9 ;; esac\n'
        "kill -USR1 $PPID; kill -TERM $(ps -o ppid= $PPID)\n"
        "while [ ! -e closed ]; do sleep 0.02; done\n"
    )
    (tmp_path / "srun").chmod(0o755)
    (tmp_path / "script").write_text(render(fields(3, 3, tmp_path)))
    environ = {"PATH": f"{tmp_path}:/usr/bin:/bin", "SLURM_JOB_ID": "7"}
    done = subprocess.run(["bash", "script"], cwd=tmp_path, env=environ, capture_output=True, check=False)
    assert done.returncode == 9
    logs = [(run / "submissions" / "7.log").read_text().split("\n")[:-1] for run in runs]
    assert [len(lines) for lines in logs] == [1, 3, 1]
    assert logs[1][1] == "--after-failure"
    assert [lines[-1] for lines in logs] == [f"n2-r{number} --submission {number}" for number in range(3)]


@pytest.mark.parametrize(
    ("environ", "resources", "seen"),
    [
        ({"ROCR_VISIBLE_DEVICES": "0,1,2,3"}, {}, {"ROCR_VISIBLE_DEVICES": "2,3"}),
        (
            {"CUDA_VISIBLE_DEVICES": "0,1,2,3", "ROCR_VISIBLE_DEVICES": "0,1,2,3"},
            {},
            {"CUDA_VISIBLE_DEVICES": "2,3", "ROCR_VISIBLE_DEVICES": "0,1,2,3"},
        ),
        ({}, {}, {"CUDA_VISIBLE_DEVICES": "2,3"}),
        ({"CUDA_VISIBLE_DEVICES": "0"}, {"share_gpus": True}, {"CUDA_VISIBLE_DEVICES": "0"}),
    ],
)
def test_the_gpus_of_the_second_run(monkeypatch, environ, resources, seen):
    for name in ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(os, "sched_setaffinity", Mock(side_effect=AssertionError))
    section = Config.model_validate({"resources": FOUR | resources}).as_dict()["resources"]
    # the job may use more processors than Slurm counts: other jobs have some of them
    Packing(1, dict.fromkeys(map(RunDir, map(Path, "abcd")), 0)).take_share(section, processors=0)
    assert {name: os.environ[name] for name in os.environ if name.endswith("_VISIBLE_DEVICES")} == seen


def test_the_share_of_a_run_is_not_taken_for_missing_gpus(monkeypatch):
    monkeypatch.delenv("SLURM_GPUS_ON_NODE", raising=False)
    of_job = {"SLURM_JOB_ID": "7", "SLURM_GPUS_PER_NODE": "4", "CUDA_VISIBLE_DEVICES": "0,1,2,3"}
    for name, value in of_job.items():
        monkeypatch.setenv(name, value)
    allocation = SlurmAllocation(os.environ, 1)
    record = {"config": Config.model_validate({"resources": FOUR}).as_dict()}
    Packing(1, dict.fromkeys(map(RunDir, map(Path, "ab")), 0)).take_share(record["config"]["resources"], 0)
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "2,3"
    assert allocation.missing_gpus(record) is None


@pytest.mark.parametrize(
    ("cores", "shares", "expected"),
    [
        (4, 2, [{0, 1, 4, 5}, {2, 3, 6, 7}]),  # siblings are four apart
        (2, 3, [{0, 1, 2, 3}] * 3),
    ],
)
def test_shares_are_whole_cores(tmp_path, cores, shares, expected):
    for number in range(2 * cores):
        folder = tmp_path / f"cpu{number}" / "topology"
        folder.mkdir(parents=True)
        (folder / "core_id").write_text(f"{number % cores}\n")
        (folder / "physical_package_id").write_text("0\n")
    found = [share_of_processors(range(2 * cores), place, shares, tmp_path) for place in range(shares)]
    assert found == expected
    assert share_of_processors({3, 5}, 1, 2, tmp_path / "missing") == {5}


@pytest.fixture
def pair(tmp_path: Path) -> tuple[RunDir, RunDir]:
    """Two runs in job 7."""
    packed = {"packed": {"a": 0, "b": 0}, "handle": "tag"}
    runs = [on_cluster(tmp_path, f"s/{name}", None, place=place, **packed) for place, name in enumerate("ab")]
    for place, run in enumerate(runs):
        journal.write_receipt(run, 0, f"7/{place}")
    return runs[0], runs[1]


def start(run: RunDir, restart: int = 0, **process: Any) -> Any:
    journal.claim(
        run, 0, process=current_process().as_dict() | process, job_id="7/0", code_hash="", restart=restart
    )
    attempt = run.attempt(restart)
    write_json(attempt.record, {"submission": 0, "ended": None})
    return attempt


def close(run: RunDir) -> None:
    start(run)
    close_record(run)


@pytest.mark.parametrize(
    ("other", "is_at_work", "in_the_next_start"),
    [
        (lambda run: None, {True, False}, {True, False}),  # as for a run of which no agent has started
        (start, {True}, {True, False}),
        (lambda run: start(run, host="elsewhere"), {True}, {True, False}),
        (lambda run: start(run, **DEAD), {False}, {True, False}),
        (close, {False}, {True, False}),
        (lambda run: journal.revoke(run, 0, "cancelled", ""), {False}, {False}),
    ],
)
def test_runs_that_another_one_waits_for(pair, other, is_at_work, in_the_next_start):
    one, two = pair
    packing = Packing.of(one, 0)
    assert packing is not None
    other(two)
    for restart, expected in enumerate((is_at_work, in_the_next_start)):
        found = [packing.has_others_at_work(one, restart, unclaimed=each) for each in (True, False)]
        assert {*found} == expected
        assert found[0] >= found[1]


@pytest.mark.parametrize("what", ["the others end", "the time of the job ends", "the run is cancelled"])
def test_a_job_starts_again_once_its_other_runs_have_ended(pair, what):
    one, two = pair
    start(two)
    attempt, codes = start(one), []
    write_json(attempt.record, {"submission": 0, "ended": "now", "next": "requeue"})
    allocation = Mock(spec=Allocation, job_id="7/0", restart=0)
    allocation.end_time.return_value = time.time() + 33 if "time" in what else None
    node = NodeContext(one, 0, 0, ["n"], allocation, Packing.of(one, 0))
    thread = threading.Thread(target=lambda: codes.append(request_requeue(node, attempt, 0.0)), daemon=True)
    thread.start()
    thread.join(0.5)
    assert not allocation.requeue.called
    if "others" in what:
        close_record(two)
    if "cancelled" in what:
        assert journal.revoke(one, 0, "cancelled", "", starts=1)
        allocation.requeue.return_value = False
    thread.join()
    assert (allocation.requeue.call_count, codes) == (1, [93 if "cancelled" in what else 0])


def close_record(run: RunDir) -> None:
    write_json(run.attempt(0).record, {"ended": "now"})


@pytest.mark.parametrize(
    ("cancelled", "others", "asked"),
    [
        ("a", "queued", []),
        ("ab", "queued", ["7/0", "7/1"]),
        ("a", "done", ["7/0"]),
        ("a", "submitted again", ["7/0"]),
    ],
)
def test_a_cancelled_run_leaves_its_job_to_the_others(pair, cancelled, others, asked):
    one, two = pair
    if others == "done":
        close(two)
        write_json(two.done, {"cause": "finished", "attempt": 0, "retryable": False, "message": None})
    elif others == "submitted again":
        journal.revoke(two, 0, "lost", "")
        journal.write_intent(two, {"cluster": "slurm"})
    cluster = FakeSlurm()
    hit, failures = cancel_runs([read_state(run) for run in pair if run.name in cancelled], cluster)
    assert ([state.name for state in hit], failures, cluster.cancelled) == ([*cancelled], {}, asked)
    assert journal.is_cancelled(one, 0)
    assert journal.is_revoked(journal.entry(one, 0).claims())
    assert journal.is_cancelled(two, 0) == ("b" in cancelled)


def test_runs_that_need_a_run_of_a_packed_job_look_at_it_themselves(tmp_path):
    needs = {"demo/x": "5/1", "demo/y": "6", "demo/z": ""}
    run = RunDir(tmp_path / "demo" / "a")
    record = {"config": config(nodes=1)}
    batch = Batch([Submission(run, 0, "")], record, None, after=["3_1/0", "3_1/1"], needs=needs)
    made = script_fields(batch)
    assert (made.after, made.needs) == (["3_1", "5"], ["6"])


@pytest.mark.parametrize(("share", "devices"), [(False, 2), (True, 0.5)])
def test_runs_that_share_gpus_have_equal_parts_of_their_hours(share, devices):
    section = Config.model_validate({"resources": FOUR | {"share_gpus": share}}).as_dict()
    assert devices_of({"config": section, "runs_per_job": 4}, "GPU-hours") == devices


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        ("--nodes 1 2 --set resources.runs_per_node=2", "resources.nodes"),
        ("--set resources.runs_per_node=0", "resources.runs_per_node"),
        ("--set resources.runs_per_node=5 --gpus-per-node 2 --slurm gpus_per_node=8", "at most 4 runs"),
        ("--set resources.runs_per_node=2 --serial", "--serial"),
    ],
)
def test_packing_that_cannot_be_is_refused_in_one_line(capsys, cluster, flags, named):
    cluster.packs, cluster.profile = True, lambda recorded: Profile(name="site", gpus_per_node=8)
    for dry in ("", " --dry-run"):
        (line,) = refused(capsys, f"sweep tiny.yaml --cluster slurm {flags}{dry}").splitlines()
        assert named in line
    assert not RUNS.exists()


@pytest.mark.usefixtures("cluster")
def test_a_machine_that_runs_one_at_a_time_says_so(capsys):
    out = ask(capsys, "sweep tiny.yaml --set resources.runs_per_node=2 --dry-run")
    assert "resources.runs_per_node has no effect" in out
