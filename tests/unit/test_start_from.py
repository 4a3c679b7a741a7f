"""`checkpoint.start_from`: a path without a checkpoint is refused before a job and before a process group."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from disttrain import __main__ as entry
from disttrain.config.parsing import Draft, check
from disttrain.errors import ConfigError
from disttrain.records import checkpoint as start_from
from disttrain.records.checkpoint import refuse_missing
from jobs.schedulers.interface import ProfileSelection
from jobs.schedulers.slurm.scheduler import SlurmScheduler
from jobs.submission.before import check_start_from, unchecked_start_from
from sweeps.expand import RunPlan
from tests.support.jobs import FakeScheduler


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """The checkpoint folder of a run with a checkpoint of step 10."""
    path = tmp_path / "run" / "checkpoints" / "step-00000010"
    path.mkdir(parents=True)
    (path / "manifest.json").touch()
    return path


def test_a_path_without_a_checkpoint_names_those_nearby(saved: Path, tmp_path: Path) -> None:
    assert refuse_missing(str(saved)) is None
    newest = f"the newest checkpoint there is {saved}"
    for folder in (saved.parent, saved.parent.parent):
        assert refuse_missing(str(folder)) == (
            f"checkpoint.start_from={folder} holds no manifest.json; {newest}"
        )
    other = saved.with_name("step-00000011")
    assert refuse_missing(str(other)) == (
        f"checkpoint.start_from={other} does not exist; did you mean '{saved}'?"
    )
    assert refuse_missing(str(tmp_path / "a" / "b")) == (
        f"checkpoint.start_from={tmp_path}/a/b does not exist; give the folder of a checkpoint, as "
        ".../checkpoints/step-00000100"
    )


def test_the_folders_are_opened_before_the_manifest_is_read(
    saved: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NFS may say from its cache that a new checkpoint does not exist, until its folder is opened."""
    opened: list[Path] = []
    real_open, real_is_file = os.scandir, Path.is_file

    def scandir(folder: Path) -> Any:
        opened.append(Path(folder))
        return real_open(folder)

    monkeypatch.setattr(start_from.os, "scandir", scandir)
    monkeypatch.setattr(
        Path, "is_file", lambda path: {path.parent, path.parent.parent} <= {*opened} and real_is_file(path)
    )
    assert refuse_missing(str(saved)) is None
    assert opened == [saved.parent, saved]


def planned(path: str, key: str = "new") -> RunPlan:
    config = check(Draft({"train": {"steps": 1, "local_batch_size": 1}, "checkpoint": {"start_from": path}}))
    return RunPlan("n1", config, key, 0, {}, None)


def test_a_new_run_is_refused_and_an_existing_one_may_have_a_checkpoint_of_its_own(tmp_path: Path) -> None:
    run = planned(str(tmp_path / "gone"))
    with pytest.raises(ConfigError, match=r"^checkpoint\.start_from=.*/gone does not exist; "):
        check_start_from([run], set(), tmp_path / "runs", FakeScheduler())
    check_start_from([run], {"new"}, tmp_path / "runs", FakeScheduler())
    assert unchecked_start_from([run], tmp_path / "runs", FakeScheduler()) == []


def test_a_file_system_of_the_compute_nodes_alone_is_checked_in_the_job(tmp_path: Path) -> None:
    (tmp_path / "empty-mount-point").mkdir()
    path = tmp_path / "empty-mount-point/me/checkpoints/step-00000001"
    check_start_from([planned(str(path))], set(), tmp_path / "runs", FakeScheduler())
    (line,) = unchecked_start_from([planned(str(path))], tmp_path / "runs", FakeScheduler())
    assert line == (
        f"checkpoint.start_from={path}: this machine has no folder {path.parent}, so the path can only be "
        "checked in the job"
    )
    with pytest.raises(ConfigError, match="does not exist"):  # the runs folder is on both
        check_start_from([planned(str(path))], set(), tmp_path / "empty-mount-point", FakeScheduler())


def test_a_checkpoint_that_an_earlier_job_writes_is_checked_in_the_job(saved: Path) -> None:
    scheduler = SlurmScheduler(ProfileSelection("generic", ("sbatch.dependency=afterok:12",)))
    later = str(saved.with_name("step-00000020"))
    root = saved.parents[2]
    check_start_from([planned(later)], set(), root, scheduler)
    (line,) = unchecked_start_from([planned(later), planned(str(saved))], root, scheduler)
    assert line == (
        f"checkpoint.start_from={later} holds no checkpoint yet; the job waits for others "
        "(sbatch.dependency=afterok:12), and checks the path when it starts"
    )
    with pytest.raises(ConfigError, match="does not exist"):
        check_start_from([planned(later)], set(), root, SlurmScheduler())


def test_a_rank_refuses_it_unless_the_run_has_a_checkpoint_of_its_own(
    saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("own.yaml").write_text(
        f"{{train: {{steps: 1, local_batch_size: 1}}, checkpoint: {{start_from: {tmp_path}/gone}}}}"
    )
    with pytest.raises(ConfigError, match=r"^own\.yaml:1: checkpoint\.start_from=.*/gone does not exist; "):
        entry.read_config(*entry.parse_arguments(["--config", "own.yaml"]))
    own = ["--config", "own.yaml", "--run-dir", str(saved.parent.parent)]
    entry.read_config(*entry.parse_arguments(own))
