"""The Slurm cluster against stand-ins for Slurm's commands."""

from __future__ import annotations

from pathlib import Path

import pytest

from disttrain.config import Config
from disttrain.errors import ConfigError
from disttrain.rundir import RunDir, write_json
from jobs.cluster import SubmitError, choose, uses_gpus
from jobs.slurm.cluster import SlurmCluster
from jobs.slurm.commands import answers
from tests.support.commands import Commands


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    return planned(tmp_path, "auto")


def planned(root: Path, device: str) -> RunDir:
    resources = {"nodes": 3, "gpus_per_node": 4, "device": device, "threads_per_rank": 2}
    config = Config.model_validate({"resources": resources, "data": {"workers": 3}})
    run = RunDir(root / "runs" / "demo" / "n3")
    write_json(run.run_json, {"config": config.as_dict(), "run_key": "abc", "cluster": "slurm"})
    return run


def test_auto_is_slurm_only_where_its_controller_answers(
    commands: Commands, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(commands.folder))  # Slurm may be installed here
    assert not answers()
    assert choose("auto").name == "local"
    assert capsys.readouterr().err == ""
    monkeypatch.setenv("PATH", f"{commands.folder}:/usr/bin:/bin")
    commands.add("sbatch", "")
    commands.add("scontrol", 'echo "Slurmctld(primary) at head is DOWN"')
    assert not answers()
    assert choose("auto").name == "local"
    warning = capsys.readouterr().err
    assert warning.startswith("warning: sbatch is here but no Slurm controller answers")
    assert warning.count("\n") == 1
    choose("local")
    assert capsys.readouterr().err == ""
    with pytest.raises(ConfigError, match="no Slurm controller answers"):
        choose("slurm")
    commands.add("scontrol", 'echo "Slurmctld(primary) at head is UP"')
    assert choose("auto").name == "slurm"
    with pytest.raises(ConfigError, match="'pbs' is not one of"):
        choose("pbs")


def test_a_controller_that_hangs_does_not_hang_us(commands: Commands) -> None:
    commands.add("sbatch", "")
    commands.add("scontrol", "exec sleep 60")
    assert not answers(timeout_s=0.2)


def test_submission_asks_for_one_task_per_node(commands: Commands, run: RunDir) -> None:
    commands.add("srun", "")
    commands.add("sbatch", f'cp "$1" {commands.folder}/script; echo "Submitted batch job 42"')
    assert SlurmCluster().submit(run, 0) == "42"
    script = (commands.folder / "script").read_text()
    for line in (
        "--nodes=3",
        "--ntasks-per-node=1",
        "--gpus-per-node=4",
        "--cpus-per-task=20",  # 4 ranks of 2 threads and 3 loader workers
        "--time=60",
        "--comment=disttrain:demo/n3:abc:0",
        "--requeue",
        "--signal=USR2@60",
    ):
        assert f"#SBATCH {line}\n" in script, script


@pytest.mark.parametrize(("device", "asks"), [("auto", True), ("cuda", True), ("cpu", False)])
def test_gpus_are_asked_for_unless_the_run_is_on_cpus(
    commands: Commands, tmp_path: Path, device: str, asks: bool
) -> None:
    commands.add("srun", "")
    commands.add("sbatch", f'cp "$1" {commands.folder}/script; echo "Submitted batch job 42"')
    SlurmCluster().submit(planned(tmp_path, device), 0)
    assert ("--gpus-per-node=4" in (commands.folder / "script").read_text()) is asks
    assert uses_gpus(device, "slurm", 12) is asks, "as the dry run bills it"


def test_on_this_machine_auto_takes_the_gpus_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jobs.cluster.gpus_here", lambda: 2)
    assert [uses_gpus("auto", "local", ranks) for ranks in (2, 3)] == [True, False]
    assert uses_gpus("cuda", "local", 3)


def test_a_refusal_is_one_line(commands: Commands, run: RunDir) -> None:
    commands.add("srun", "")
    commands.add("sbatch", "echo 'sbatch: error: invalid partition' >&2; exit 1")
    with pytest.raises(SubmitError, match="invalid partition") as caught:
        SlurmCluster().submit(run, 0)
    assert "\n" not in str(caught.value)


def test_find_and_cancel(commands: Commands, run: RunDir) -> None:
    commands.add("scancel", "")
    commands.add(
        "squeue",
        """case "$*" in
  *%k*) echo '41|(null)'; echo '42|disttrain:demo/n3:abc:0' ;;
esac""",
    )
    cluster = SlurmCluster()
    assert cluster.find(run, 0) == "42"
    assert cluster.find(run, 1) is None
    cluster.cancel([])
    cluster.cancel(["1", "2"])
    assert commands.calls().count("scancel") == 1
    assert "scancel 1 2" in commands.calls()
