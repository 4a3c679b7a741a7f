"""`sbatch jobs/train.sbatch` on a real Slurm: the same run as `submit.py run` makes, and started once."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from disttrain.records.json_files import read_json, write_json
from disttrain.records.node import NodeRecord
from disttrain.records.planned import RunRecord
from disttrain.records.run_directory import RunDir
from jobs.core import excluded_nodes, journal
from jobs.core.excluded_nodes import ExcludedNode
from jobs.core.requeue_policy import EXIT_DO_NOT_REQUEUE
from jobs.schedulers.slurm.scheduler import SlurmScheduler
from jobs.status.run_state import read_runs, read_state
from tests.support.jobs import STANDIN, starts, wait_until
from tests.support.minicluster import SUBMIT, MiniCluster

SBATCH = SUBMIT.parent / "jobs" / "train.sbatch"
RECORDING = STANDIN.with_name("recording_launcher.sh")
CONFIG = """\
model: {kind: mlp}
data: {kind: digits}
resources: {device: DEVICE}
train: {steps: 20, local_batch_size: 16}
telemetry: {warmup_steps: 2, profiled_steps: 0, sinks: []}
job: {time_limit_min: 5, env: {STANDIN: complete, MINE: "1"}}
"""


@pytest.fixture
def folder(on_slurm: MiniCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where commands are typed, with a config."""
    monkeypatch.setenv("DISTTRAIN_LAUNCHER", str(STANDIN))
    monkeypatch.setenv("DISTTRAIN_PYTHON", sys.executable)
    (tmp_path / "my.yaml").write_text(CONFIG.replace("DEVICE", "cpu"))
    return tmp_path


def sbatch(folder: Path, *words: str) -> str:
    """`sbatch ...` in a folder; the job's id."""
    command = ["sbatch", "--parsable", *words]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def by_hand(folder: Path, *arguments: str, options: tuple[str, ...] = ()) -> str:
    return sbatch(folder, *options, str(SBATCH), *arguments)


def ended(job: str) -> Callable[[], bool]:
    return lambda: SlurmScheduler().poll([job])[job].status in ("ended", "not_found")


def words_of(folder: Path, job: str) -> str:
    """What a job said, once it is over."""
    wait_until(ended(job))
    assert not list(folder.glob("*.log"))
    return (folder / "runs" / f"train-{job}.log").read_text()


def exit_code(slurm: MiniCluster, job: str) -> int:
    said = slurm.ask("scontrol", "show", "job", job)
    found = re.search(r"ExitCode=(\d+):", said)
    assert found
    return int(found[1])


def only_run(folder: Path) -> RunDir:
    (state,) = read_runs(folder / "runs")
    return state.run


@pytest.mark.parametrize("gpus", [None, 2])
def test_both_ways_make_the_same_run(
    gpus: int | None, folder: Path, on_slurm: MiniCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DISTTRAIN_LAUNCHER", str(RECORDING))
    folders = [folder / "submitted", folder / "by-hand"]
    config = CONFIG.replace("DEVICE", "auto" if gpus else "cpu")
    limits = ("time_limit_min: 62", "time_limit_min: 5")  # by hand it is the job's
    for each, limit in zip(folders, limits, strict=True):
        each.mkdir()
        (each / "my.yaml").write_text(config.replace("time_limit_min: 5", limit))
    shape = ["--nodes", "2", *(["--gpus-per-node", str(gpus)] if gpus else [])]
    asked = ["--nodes", "2", "--gpus-per-node", str(gpus or 0), "--cpus-per-task", str(gpus or 1)]
    same = ["--set", "train.steps=10", "train.seed=3", "--no-report", "--cluster", "slurm"]
    command = [sys.executable, str(SUBMIT), "run", "my.yaml", *shape, *same]
    subprocess.run(command, cwd=folders[0], check=True, capture_output=True)
    job = by_hand(
        folders[1], "--config", "my.yaml", "--train.steps", "10", "--train.seed=3",
        options=(*asked, "--time", "62"),
    )  # fmt: skip
    runs = [RunDir(each / "runs" / "my" / name) for each in folders for name in [name_of(folders[0])]]
    for run in runs:
        wait_until(run.done.exists)
    records = [RunRecord.model_validate(read_json(run.run_json)).model_dump() for run in runs]
    assert records[1]["provenance"]["code"]["taken"] == "start"
    assert "including edits made since sbatch" in words_of(folders[1], job)
    assert journal.entry(runs[1], 0).read("receipt")["job_id"] == job
    for record in records:
        for name in ("created", "argv", "host"):
            del record["provenance"][name]
        del record["provenance"]["code"]["taken"]
    assert records[0] == records[1]
    masked = [mask(read_json(run.env_json)["variables"], run) for run in runs]
    assert masked[0] == masked[1]
    for node in (0, 1):
        seen = [mask(seen_by(run, node), run) for run in runs]
        assert dict(seen[0].items() ^ seen[1].items()) == {}


@pytest.mark.slow
def test_a_run_with_nothing_but_damaged_checkpoints_starts_only_from_scratch(
    folder: Path, on_slurm: MiniCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("DISTTRAIN_LAUNCHER")  # real ranks
    command = ("--config", "my.yaml", "--checkpoint.every_steps=20")
    words_of(folder, by_hand(folder, *command))
    run = only_run(folder)
    outcome = read_json(run.done)
    run.done.unlink()
    write_json(run.failed, outcome | {"cause": "crashed", "retryable": True})
    os.truncate(run.checkpoints / "step-00000020" / "__0_0.distcp", 9)
    refused = by_hand(folder, *command)
    wait_until(ended(refused))
    assert (read_json(run.failed)["cause"], read_json(run.failed)["next"]) == ("refused", None)
    assert "--from-scratch" in read_json(run.failed)["message"]
    assert exit_code(on_slurm, refused) == EXIT_DO_NOT_REQUEUE
    said = words_of(folder, by_hand(folder, *command, "--from-scratch"))
    assert "checkpoints.aside" in said
    assert run.done.exists()
    assert read_json(run.metrics)["resumed_step"] is None
    assert [path.name for path in run.checkpoints.iterdir()] == ["step-00000020"]
    assert [path.name for path in (run.path / "checkpoints.aside").iterdir()] == ["step-00000020.damaged"]


def name_of(folder: Path) -> str:
    return only_run(folder).name


def seen_by(run: RunDir, node: int) -> dict[str, str]:
    lines = (run.path / f"seen-{node}").read_text().splitlines()
    return dict(line.split("=", 1) for line in lines if "=" in line)


def mask(variables: Mapping[str, Any], run: RunDir) -> dict[str, str]:
    """Without what belongs to one job: its id, place, name, and when it runs."""
    of_a_job = (
        r"SLURM_(JOB_?ID|JOB_NAME|.*(START|END)_TIME|.*NODELIST|.*PORT|.*PID|STEPMGR|GTIDS|SUBMIT_DIR|.*HOST"
        r"|TOPOLOGY_ADDR|NODENAME|LAUNCH_NODE_IPADDR|JOB_GPUS|STEP_GPUS|.*CPU_BIND.*|TASK_PID|JOB_CPUS.*)"
        r"|SLURMD_NODENAME|HOSTNAME|PWD|OLDPWD|_|SHLVL|DISTTRAIN_DEADLINE|DISTTRAIN_NODE_FOLDER|TMPDIR"
        r"|DISTTRAIN_RUN_DIRECTORY_ID|PET_LOG_DIR"
        r"|CUDA_VISIBLE_DEVICES|GPU_DEVICE_ORDINAL|ROCR_VISIBLE_DEVICES|ZE_AFFINITY_MASK"
    )
    folder = run.path.parents[2]
    found = {}
    for name, value in variables.items():
        no_gpus = (name, value) == ("SLURM_GPUS_PER_NODE", "0")
        if not re.fullmatch(of_a_job, name) and not no_gpus:
            text = json.dumps(value).replace(str(folder), "FOLDER")
            found[name] = re.sub(r"--master-(addr|port) \S+", "", text)
    return found


def test_without_arguments_it_is_the_default_config(folder: Path, on_slurm: MiniCluster) -> None:
    """All nodes are on the exclusion list, which a job by hand does not follow: it prints a warning."""
    runs = folder / "runs"
    runs.mkdir()
    for host in SlurmScheduler().node_names() or []:
        entry = ExcludedNode.until(host, "slow link", cluster=on_slurm.name, by="ann")
        excluded_nodes.add(runs, entry)
    job = by_hand(folder)
    printed = words_of(folder, job)
    assert "error" not in printed
    assert re.search(r"warning: node \S+ is on the exclusion list \(ann: slow link\)", printed)
    run = only_run(folder)
    assert RunRecord.model_validate(read_json(run.run_json)).excluded_nodes == []
    assert (run.sweep, run.name) == ("default", "n1-g1")
    assert read_state(run).state == "done"
    assert (folder / "runs" / "default" / "sweep.json").exists()


def test_done_already_says_so(folder: Path, on_slurm: MiniCluster) -> None:
    first = by_hand(folder, "--config", "my.yaml")
    words_of(folder, first)
    again = by_hand(folder, "--config", "my.yaml")
    assert "done; nothing to do" in words_of(folder, again)
    assert exit_code(on_slurm, again) == 0
    assert starts(only_run(folder)) == [(0, 0)]


def test_of_two_at_once_exactly_one_trains_and_goes_on_with_its_submission(
    folder: Path, on_slurm: MiniCluster
) -> None:
    (folder / "my.yaml").write_text(CONFIG.replace("DEVICE", "cpu").replace("complete", "hang"))
    jobs = [by_hand(folder, "--config", "my.yaml", options=("--nodes", "2")) for _ in range(2)]
    wait_until(lambda: any(ended(job)() for job in jobs))
    run = only_run(folder)
    wait_until(lambda: len(starts(run)) == 2)
    (refused,) = [job for job in jobs if ended(job)()]
    (running,) = set(jobs) - {refused}
    assert exit_code(on_slurm, refused) == EXIT_DO_NOT_REQUEUE
    assert f"(job {running})" in words_of(folder, refused)

    paths = [run.attempt(0).node_record(node) for node in (0, 1)]
    wait_until(lambda: all(path.exists() for path in paths))
    first, second = (NodeRecord.model_validate(read_json(path)) for path in paths)
    assert f"JobId={running} " in str(first.scontrol)
    assert second.scontrol is None
    assert [each.slurm["SLURM_NODEID"] for each in (first, second)] == ["0", "1"]
    assert "eth0" in {interface.name for interface in second.interfaces}

    (folder / "my.yaml").write_text("edited: since\n")
    on_slurm.ask("scontrol", "requeue", running)
    wait_until(lambda: sorted(starts(run)) == [(0, 0), (0, 1), (1, 0), (1, 1)])
    assert read_json(run.attempt(1).record)["job_id"] == running
    on_slurm.submit("cancel", "my", cwd=folder)
    assert read_state(run).cause == "cancelled", "cancel waits for the end of the job"
    wait_until(ended(running))


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("--config", "missing.yaml"), "no file"),
        (("--config", "my.yaml", "--resources.nodes", "4"), "is set by the job: use sbatch --nodes 4"),
    ],
)
def test_bad_input_is_one_line(
    arguments: tuple[str, ...], expected: str, folder: Path, on_slurm: MiniCluster
) -> None:
    job = by_hand(folder, *arguments, options=("--nodes", "2"))
    said = words_of(folder, job)
    (line,) = [line for line in said.splitlines() if not line.startswith("srun:")]
    assert line.startswith("error: ")
    assert expected in line
    assert exit_code(on_slurm, job) == 93
    assert [path.name for path in (folder / "runs").iterdir()] == [f"train-{job}.log"]
