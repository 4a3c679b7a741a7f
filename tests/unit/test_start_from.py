"""`checkpoint.start_from`: a path without a checkpoint is refused before a job and before a process group."""

from __future__ import annotations

from pathlib import Path

import pytest

from disttrain import __main__ as entry
from disttrain.checkpoint.start_from import is_visible, refuse_missing
from disttrain.config.parsing import Draft, check
from disttrain.errors import ConfigError
from jobs.submission.start_from_check import check_start_from, unchecked_start_from
from sweeps.expand import RunPlan


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


def planned(start_from: str, key: str = "new") -> RunPlan:
    config = check(
        Draft({"train": {"steps": 1, "local_batch_size": 1}, "checkpoint": {"start_from": start_from}})
    )
    return RunPlan("n1", config, key, 0, {}, None)


def test_a_new_run_is_refused_and_an_existing_one_may_have_a_checkpoint_of_its_own(tmp_path: Path) -> None:
    run = planned(str(tmp_path / "gone"))
    with pytest.raises(ConfigError, match=r"^checkpoint\.start_from=.*/gone does not exist; "):
        check_start_from([run], existing={})
    check_start_from([run], existing={"new": "n1"})
    assert unchecked_start_from([run]) == []


def test_a_file_system_of_the_compute_nodes_alone_is_checked_in_the_job() -> None:
    run = planned("/no-such-mount/step-00000001")
    assert not is_visible("/no-such-mount/step-00000001")
    check_start_from([run], existing={})
    (line,) = unchecked_start_from([run])
    assert line.startswith("checkpoint.start_from=/no-such-mount/step-00000001: its file system is not on ")


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
