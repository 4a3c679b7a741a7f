"""Secrets on a real Slurm: ranks have their values, and no other user can read them."""

from __future__ import annotations

import secrets
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from disttrain.records.run_directory import RunDir
from jobs.status.run_state import read_runs
from tests.slurm.test_by_hand import SBATCH, ended, sbatch
from tests.support.jobs import STANDIN, wait_until
from tests.support.minicluster import MiniCluster

CONFIG = """\
model: {kind: mlp}
data: {kind: digits}
resources: {device: cpu}
train: {steps: 20, local_batch_size: 16}
"""
JOB = "job: {time_limit_min: 5, max_attempts: 1, env: {STANDIN: MODE}}\n"
LAUNCHER = """\
#!/bin/sh
# All that other users see while the job runs, less what the test typed, then the value that a rank has.
exec 3> SEEN/public-$$
squeue --states=all -o %all >&3
scontrol show job -d >&3
for each in /proc/[0-9]*/cmdline; do { tr '\\0' ' ' < $each; echo; } 2>&1; done | grep -v submit.py >&3
printf '%s\\n' "$HF_TOKEN" >> SEEN/values
exec STANDIN "$@"
"""


@pytest.fixture
def folder(on_slurm: MiniCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    seen, launcher = tmp_path / "seen", tmp_path / "launcher.sh"
    seen.mkdir()
    launcher.write_text(LAUNCHER.replace("SEEN", str(seen)).replace("STANDIN", str(STANDIN)))
    launcher.chmod(0o755)
    monkeypatch.setenv("DISTTRAIN_LAUNCHER", str(launcher))
    monkeypatch.setenv("DISTTRAIN_PYTHON", sys.executable)
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "my.yaml").write_text(CONFIG + JOB.replace("MODE", "complete"))
    return tmp_path / "work"


@pytest.mark.parametrize("way", ["run", "file", "shell", "by hand, file", "by hand, argument"])
def test_ranks_have_the_value_that_no_other_user_sees(
    way: str, folder: Path, on_slurm: MiniCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    value = secrets.token_hex(8)  # Slurm still lists jobs of other tests
    if "file" in way:
        text = (folder / "my.yaml").read_text()
        (folder / "my.yaml").write_text(text.replace("STANDIN:", f"HF_TOKEN: {value}, STANDIN:"))
    if way == "shell":
        monkeypatch.setenv("HF_TOKEN", value)
    if way.startswith("by hand"):
        typed = [f"--job.env.HF_TOKEN={value}"] if way.endswith("argument") else []
        job = sbatch(folder, str(SBATCH), "--config", "my.yaml", *typed)
    else:
        words = {"shell": ["job.secrets=[HF_TOKEN]"], "file": ["train.seed=1"]}.get(way)
        words = words or [f"job.env.HF_TOKEN={value}"]
        on_slurm.submit("run", "my.yaml", "--cluster", "slurm", "--no-report", "--set", *words, cwd=folder)
        (job,) = [str(state.job_id) for state in read_runs(folder / "runs")]
    wait_until(ended(job))
    assert (folder.parent / "seen" / "values").read_text().split() == [value]
    public = list(seen_by_others(folder, on_slurm, job))
    if way == "by hand, argument":  # the user gave the arguments of the job to Slurm
        log = (folder / "runs" / f"train-{job}.log").read_text()
        assert "arguments of a job" in log
        public = [log]
    assert not [text for text in public if value in text]
    assert files_with(value, folder) == ([] if way == "shell" else ["my/secrets.json"])


def test_a_resumed_run_has_the_newest_value(folder: Path, on_slurm: MiniCluster) -> None:
    first, second = secrets.token_hex(8), secrets.token_hex(8)
    (folder / "my.yaml").write_text(CONFIG + JOB.replace("MODE", "fail"))
    command = ["run", "my.yaml", "--cluster", "slurm", "--no-report", "--set"]
    on_slurm.submit(*command, f"job.env.HF_TOKEN={first}", cwd=folder)
    run = only_run(folder)
    wait_until(run.failed.exists)
    with pytest.raises(AssertionError, match="1 blocked"):
        on_slurm.submit(*command, f"job.env.HF_TOKEN={second}", cwd=folder)
    values = folder.parent / "seen" / "values"
    assert values.read_text().split() == [first], "another value starts nothing by itself"
    on_slurm.submit("resume", "my", "--no-report", cwd=folder)
    wait_until(lambda: values.read_text().split() == [first, second])
    (state,) = read_runs(folder / "runs")
    wait_until(ended(str(state.job_id)))
    assert only_run(folder) == run
    assert not [
        text
        for text in seen_by_others(folder, on_slurm, str(state.job_id))
        if first in text or second in text
    ]
    assert (files_with(first, folder), files_with(second, folder)) == ([], ["my/secrets.json"])


def only_run(folder: Path) -> RunDir:
    (state,) = read_runs(folder / "runs")
    return state.run


def seen_by_others(folder: Path, cluster: MiniCluster, job: str) -> Iterator[str]:
    yield from (path.read_text() for path in (folder.parent / "seen").glob("public-*"))
    found = cluster.ask("sacct", "-P", "-o", "ALL", "-j", job)
    assert "SubmitLine" in found
    yield found
    yield from (path.read_text() for path in folder.glob("runs/*.log"))


def files_with(value: str, folder: Path) -> list[str]:
    """Files below the runs folder whose path or content has the value, hidden ones and logs too."""
    runs = folder / "runs"
    return [
        path.relative_to(runs).as_posix()
        for path in runs.rglob("*")
        if path.is_file() and value.encode() in bytes(path.relative_to(runs)) + path.read_bytes()
    ]
