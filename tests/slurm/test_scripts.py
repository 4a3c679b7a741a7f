"""Batch scripts on a real Slurm: strange values are inert there, too; `jobs/train.sbatch` finds its code."""

from __future__ import annotations

import dataclasses
import os
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings

from disttrain.errors import ConfigError
from disttrain.records.json_files import read_json, write_text
from docs.generate.files import ROOT
from jobs.schedulers.interface import ProfileSelection
from jobs.schedulers.site_profiles import resolve
from jobs.schedulers.slurm.executor import check_script
from jobs.schedulers.slurm.profile import Profile
from jobs.schedulers.slurm.script import ArrayTask, render
from tests.support.jobs import SMALL, wait_until
from tests.support.minicluster import MiniCluster
from tests.support.scripts import CANARY, SHIPPED_NAMES, batch, config, fields, placing, sift, sift_batch

SLURM_REASONS = re.compile(
    r"to start at|invalid (partition|account|qos|feature|constraint|gres|reservation|node|wckey|user)"
    r"|requested (node configuration|partition configuration|reservation)|invalid generic resource|node name",
    re.IGNORECASE,
)
PYTHON = """\
#!/bin/sh
printf '%s\\0' "$PYTHONPATH" "$SLURM_JOB_NAME" "$@" > RECORDS/"$SLURM_JOB_ID.$SLURM_PROCID"
"""
"""A stand-in for Python that writes down how it was called."""


@pytest.fixture
def quiet(on_slurm: MiniCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to submit from, in which nothing may appear."""
    folder = tmp_path / "quiet"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.delenv("PYTHONPATH", raising=False)
    return folder


@settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
@given(given=fields, placed=placing)
def test_slurm_reads_what_was_meant_and_runs_nothing(
    quiet: Path, given: dict[str, Any], placed: dict[str, str]
) -> None:
    script = render(sift_batch(sift(given), placed))
    verdict = check_script(script, os.environ)
    assert SLURM_REASONS.search(verdict.message), verdict.message
    assert "option" not in verdict.message, verdict.message
    assert list(quiet.iterdir()) == []


@pytest.mark.parametrize("profile", SHIPPED_NAMES)
def test_slurm_accepts_the_scripts_of_the_shipped_profiles(quiet: Path, profile: str) -> None:
    site = resolve(ProfileSelection(profile), try_options=True)
    made = batch(quiet.parent, site, config=config(nodes=2, ranks=1))
    check = check_script(render(made), os.environ)
    assert check.accepted, check.message


@pytest.mark.parametrize(
    ("words", "taken"),
    [
        (["gpus=gpus"], "to start at"),
        (["gpus=gres"], "to start at"),
        (["exclude=nowhere"], "invalid node name"),
        (["reservation=nothing"], "reservation"),
        (["sbatch.licenses=nothing:1"], "licen[cs]e"),
        (["sbatch.switches=1@30"], "to start at"),
        (["sbatch.dependency=singleton"], "to start at"),
        (["sbatch.hint=nomultithread"], "to start at"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_slurm_reads_what_sites_ask_for(quiet: Path, words: list[str], taken: str) -> None:
    profile = resolve(ProfileSelection("generic", words), try_options=True)
    made = batch(quiet.parent, profile, config=config(nodes=2, ranks=1))
    check = check_script(render(made), os.environ)
    assert re.search(taken, check.message, re.IGNORECASE), check.message


@pytest.mark.parametrize(
    ("word", "why"),
    [
        ("sbatch.licences=x", "sbatch: unrecognized option .*did you mean 'licenses'"),
        ("sbatch.licenses=true", "sbatch.licenses: needs a value"),
        ("exclusive=topo", "exclusive: sbatch: Invalid --exclusive specification"),
        ("srun.cpubind=none", "srun: unrecognized option .*did you mean 'cpu-bind'"),
        ("srun.mpi=true", "srun.mpi: needs a value"),
    ],
)
def test_the_installed_commands_refuse_an_option(on_slurm: MiniCluster, word: str, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        resolve(ProfileSelection("generic", [word]), try_options=True)


def test_a_job_of_strange_names_gets_each_of_them_whole(quiet: Path, on_slurm: MiniCluster) -> None:
    strange = 'it\'s "odd" $(touch canary) `touch canary`; touch canary # é %j ~ *'
    home = quiet.parent / strange
    python = home / "bin" / "python"
    write_text(python, PYTHON.replace("RECORDS", str(quiet.parent)))
    python.chmod(0o755)
    profile = Profile(name="x", srun={"label": True}, gpus="none")
    made = dataclasses.replace(
        batch(home, profile),
        name=strange,
        comment=strange,
        config=config(nodes=1, ranks=1),
        tasks=[ArrayTask(home / "run", 0)],
        logs=home / "logs",
        code=home / "code",
        python=str(python),
    )
    for folder in (made.logs, made.code):
        folder.mkdir()
    write_text(home / "script", render(made))
    job = on_slurm.ask("sbatch", "--parsable", str(home / "script")).strip()
    record = quiet.parent / f"{job}.0"
    wait_until(record.exists)
    wait_until(lambda: record.read_bytes().endswith(b"0\0"))
    words = record.read_bytes().decode().split("\0")
    assert words[:-1] == [
        str(made.code), strange, "-m", "jobs.schedulers.task", str(home / "run"), "--submission", "0",
    ]  # fmt: skip
    shown = on_slurm.ask("scontrol", "show", "job", job)
    assert f"Comment={strange}" in shown
    assert (made.logs / f"{job}.log").exists()
    assert not list(quiet.parent.rglob(CANARY))


def test_train_sbatch_finds_its_code_from_inside_an_allocation(
    quiet: Path, on_slurm: MiniCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = quiet.parent / "my code"
    write_text(home / "jobs" / "train.sbatch", (ROOT / "jobs" / "train.sbatch").read_text())
    write_text(home / "jobs" / "submission" / "sbatch_entry.py", "")
    python = quiet.parent / "python"
    write_text(python, PYTHON.replace("RECORDS", str(quiet.parent)))
    python.chmod(0o755)
    monkeypatch.setenv("DISTTRAIN_PYTHON", str(python))
    arguments = ["--config", "my file.yaml"]
    command = ["sbatch", "--parsable", "--nodes", "2", str(home / "jobs" / "train.sbatch"), *arguments]
    job = on_slurm.ask("salloc", "--nodes=1", "--gpus-per-node=1", "--mem-bind=local", *command).strip()
    for node in (0, 1):
        record = quiet.parent / f"{job}.{node}"
        wait_until(lambda record=record: record.exists() and record.read_bytes().endswith(b".yaml\0"))
        path, _, *words = record.read_bytes().decode().split("\0")
        assert words == ["-m", "jobs.submission.sbatch_entry", *arguments, ""]
        assert path == str(home)
    assert [path.relative_to(quiet).as_posix() for path in quiet.rglob("*.*")] == [f"runs/train-{job}.log"]


def test_a_dry_run_asks_slurm(on_slurm: MiniCluster, tmp_path: Path) -> None:
    (tmp_path / "small.yaml").write_text(SMALL)
    said = on_slurm.submit("sweep", "small.yaml", "--nodes", "1", "2", "--test-only", cwd=tmp_path)
    assert [said.count(f"Slurm accepts {run}: Job ") for run in ("n1", "n2")] == [1, 1]
    assert [path.name for path in tmp_path.iterdir()] == ["small.yaml"]


def test_a_run_keeps_the_profile_it_was_submitted_with(root: Path, on_slurm: MiniCluster) -> None:
    Path("site.yaml").write_text(
        "partition: urgent\nsetup: [export FROM_SETUP=yes]\n"
        "environment: {SITE_SAYS: {value: 'a b', reason: it likes to}}\n"
    )
    options = ("--profile", "./site.yaml", "--wait", "--no-report")
    on_slurm.submit("run", "small.yaml", *options, cwd=root.parent)
    (run,) = [path.parent for path in root.glob("small/*/run.json")]
    record = read_json(run / "run.json")
    assert (record["profile"]["name"], record["profile"]["partition"]) == ("site", "urgent")
    said = read_json(run / "env.json")["variables"]["SITE_SAYS"]
    assert (said["value"], said["reason"], said["source"]) == ("a b", "it likes to", "site")
    assert "#SBATCH --partition=urgent\n" in (run / "submit.sbatch").read_text()
