"""The command of a wheel on a real Slurm: a project that `disttrain init` wrote, without the checkout."""

from __future__ import annotations

from pathlib import Path

import pytest

from jobs.status.run_state import read_runs
from tests.support.installed import install, uninstall
from tests.support.jobs import wait_until
from tests.support.minicluster import MiniCluster

FEW = {"train.steps": 4, "train.eval_every": 0, "telemetry.warmup_steps": 1, "resources.device": "cpu"}


@pytest.mark.slow
def test_a_new_project_is_swept_and_runs_by_hand_after_the_package_is_gone(
    on_slurm: MiniCluster, distributions: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packages = install(distributions[0], tmp_path / "environment")
    command, project = str(packages.parents[2] / "bin" / "disttrain"), tmp_path / "project"
    project.mkdir()
    monkeypatch.delenv("PYTHONPATH", raising=False)
    on_slurm.ask(command, "init", cwd=project)
    sets = ["--set", *(f"{key}={value}" for key, value in FEW.items())]
    sweep = [command, "sweep", "config.yaml", "--profile", "profile.yaml", "--nodes", "1", "2"]
    on_slurm.ask(*sweep, *sets, cwd=project)
    flags = [f"--{key}={value}" for key, value in FEW.items()]
    by_hand = "sbatch --wait --nodes 2 train.sbatch --config config.yaml --name hand --run-name n2"
    on_slurm.ask(*by_hand.split(), *flags, cwd=project)
    on_slurm.ask("scontrol", "update", "nodename=ALL", "state=drain", "reason=upgrade")
    on_slurm.ask(*sweep, *sets, "train.seed=1", "--name", "late", cwd=project)
    uninstall(packages)
    on_slurm.ask("scontrol", "update", "nodename=ALL", "state=resume")
    runs, page = project / "runs", project / "runs" / "late" / "report" / "report.html"
    wait_until(lambda: page.exists() and not any(state.active for state in read_runs(runs)))
    ended = {state.label: (state.state, state.message) for state in read_runs(runs)}
    assert ended == dict.fromkeys(("config/n1", "config/n2", "hand/n2", "late/n1", "late/n2"), ("done", None))
