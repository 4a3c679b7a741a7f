"""`checkpoint.start_from`: a path without a checkpoint is refused before a job and before a process group."""

import os
from pathlib import Path

import pytest

from disttrain import __main__ as entry
from disttrain.config.parsing import Draft, check
from disttrain.errors import ConfigError
from disttrain.records.checkpoint import refuse_missing
from jobs.schedulers.interface import ProfileSelection
from jobs.schedulers.slurm.scheduler import SlurmScheduler
from jobs.submission.before import check_start_from, unchecked_start_from
from sweeps.expand import RunPlan
from tests.support.jobs import FakeScheduler


@pytest.fixture
def saved(tmp_path):
    """The checkpoint folder of a run with a checkpoint of step 10, in a runs folder."""
    path = tmp_path / "run" / "checkpoints" / "step-00000010"
    path.mkdir(parents=True)
    (path / "manifest.json").touch()
    return path


@pytest.mark.parametrize(
    ("path", "problem", "named"),
    [
        ("run/checkpoints", "holds no manifest.json", "run/checkpoints/step-00000010"),
        ("run", "holds no manifest.json", "run/checkpoints/step-00000010"),
        ("run/checkpoints/step-00000011", "does not exist", "run/checkpoints/step-00000010"),
        ("a/b", "does not exist", ".../checkpoints/step-00000100"),
    ],
)
def test_a_path_without_a_checkpoint_names_those_nearby(saved, tmp_path, path, problem, named):
    assert refuse_missing(str(saved)) is None
    message = refuse_missing(str(tmp_path / path))
    assert message.startswith(f"checkpoint.start_from={tmp_path / path} {problem}; ")
    assert (named if named.startswith(".") else str(tmp_path / named)) in message


def test_the_folders_are_opened_before_the_manifest_is_read(saved, monkeypatch):
    """NFS may say from its cache that a new checkpoint does not exist, until its folder is opened."""
    opened, scandir, is_file = [], os.scandir, Path.is_file
    monkeypatch.setattr(os, "scandir", lambda folder: opened.append(Path(folder)) or scandir(folder))
    monkeypatch.setattr(
        Path, "is_file", lambda path: {path.parent, path.parent.parent} <= {*opened} and is_file(path)
    )
    assert refuse_missing(str(saved)) is None
    assert opened == [saved.parent, saved]


def planned(path):
    config = check(
        Draft({"train": {"steps": 1, "local_batch_size": 1}, "checkpoint": {"start_from": str(path)}})
    )
    return RunPlan("n1", config, "new", 0, {}, None)


WAITING = SlurmScheduler(ProfileSelection("generic", ("sbatch.dependency=afterok:12",)))


@pytest.mark.parametrize(
    ("path", "root", "existing", "scheduler", "refused", "warning"),
    [
        ("gone", "runs", set(), FakeScheduler(), True, None),
        ("gone", "runs", {"new"}, FakeScheduler(), False, None),  # it may have a checkpoint of its own
        ("gone", "runs", set(), None, True, None),
        # a file system of the compute nodes alone, whose mount point is empty here
        ("empty/me/checkpoints/step-1", "runs", set(), FakeScheduler(), False, "this machine has no folder"),
        ("empty/me/checkpoints/step-1", "empty", set(), FakeScheduler(), True, None),  # of the runs folder
        # an earlier job may write it
        ("run/checkpoints/step-00000020", ".", set(), WAITING, False, "sbatch.dependency=afterok:12"),
        ("run/checkpoints/step-00000020", ".", set(), SlurmScheduler(), True, None),
    ],
)  # fmt: skip
def test_a_new_run_needs_a_checkpoint_where_this_machine_can_know(
    saved, tmp_path, path, root, existing, scheduler, refused, warning
):
    (tmp_path / "empty").mkdir()
    runs = [planned(tmp_path / path), planned(saved)]
    arguments = (runs, existing, tmp_path / root, scheduler)
    if refused:
        with pytest.raises(ConfigError, match=r"^checkpoint\.start_from=.* does not exist; "):
            check_start_from(*arguments)
    else:
        check_start_from(*arguments)
    if scheduler is not None:
        lines = unchecked_start_from(runs, tmp_path / root, scheduler)
        assert [warning in line for line in lines] == ([True] if warning else [])


def test_a_rank_refuses_it_unless_the_run_has_a_checkpoint_of_its_own(saved, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = "{train: {steps: 1, local_batch_size: 1}, checkpoint: {start_from: gone}}"
    Path("own.yaml").write_text(text)
    with pytest.raises(ConfigError, match=r"^own\.yaml:1: checkpoint\.start_from=gone does not exist; "):
        entry.read_config(*entry.parse_arguments(["--config", "own.yaml"]))
    entry.read_config(*entry.parse_arguments(["--config", "own.yaml", "--run-dir", str(saved.parents[1])]))
