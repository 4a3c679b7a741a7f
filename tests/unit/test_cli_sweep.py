"""`sweep` and `run`: submitted runs, kept runs, and the messages on them."""

from __future__ import annotations

from pathlib import Path

import pytest

import submit
from disttrain.records.json_files import read_json, write_json
from disttrain.records.planned import SweepRecord
from disttrain.records.run_directory import RunDir
from jobs.cli import selection
from jobs.cli.selection import chosen_scheduler, scheduler_to_resume
from jobs.core import journal
from jobs.schedulers.interface import Batch, Job, SubmitError, SubmitQuota
from jobs.status.run_state import read_runs
from tests.support.commands import Commands
from tests.support.jobs import FakeScheduler
from tests.support.states import make_run
from tests.support.verbs import RUNS, ask, ask_json, end, states

pytestmark = pytest.mark.usefixtures("cluster")


def test_a_sweep_is_submitted_once(capsys: pytest.CaptureFixture[str], cluster: FakeScheduler) -> None:
    out = ask(capsys, "sweep tiny.yaml --nodes 1 2")
    assert "2 runs: 2 submitted" in out
    assert "submit.py watch tiny" in out
    assert states() == {"n1": "queued", "n2": "queued"}
    SweepRecord.model_validate(read_json(RUNS / "tiny" / "sweep.json"))
    again = ask_json(capsys, "sweep tiny.yaml --nodes 1 2 4")
    assert [(run["run"], run["action"]) for run in again["actions"]] == [
        ("n1", "in_progress"),
        ("n2", "in_progress"),
        ("n4", "submit"),
    ]
    assert len(cluster.submitted) == 3


@pytest.mark.parametrize("source", ["flag", "profile", "file"])
def test_gpus_fill_a_node_before_the_next(capsys: pytest.CaptureFixture[str], source: str) -> None:
    options = {"flag": " --gpus-per-node 4", "profile": " --cluster slurm --profile ./site.yaml", "file": ""}
    Path("site.yaml").write_text("gpus_per_node: 4\n")
    if source == "file":
        Path("tiny.yaml").write_text(Path("tiny.yaml").read_text() + "resources: {gpus_per_node: 4}\n")
    out = ask_json(capsys, f"sweep tiny.yaml --gpus 1 2 4 8 16 --dry-run{options[source]}")
    assert [plan["run"] for plan in out["plans"]] == ["n1-g1", "n1-g2", "n1-g4", "n2-g4", "n4-g4"]


def test_completed_runs_are_kept_and_failed_ones_retried(capsys: pytest.CaptureFixture[str]) -> None:
    ask(capsys, "sweep tiny.yaml --nodes 1 2 4")
    for name, cause in (
        ("n1", "finished"),
        ("n2", "crashed"),
        ("n4", "refused"),
    ):
        end(RunDir(RUNS / "tiny" / name), cause)
    out = ask_json(capsys, "sweep tiny.yaml --nodes 1 2 4", code=1)
    assert [run["action"] for run in out["actions"]] == ["up_to_date", "retry", "blocked"]


@pytest.mark.parametrize("command", ["sweep tiny.yaml --nodes 1", "run tiny.yaml", "resume tiny"])
def test_from_scratch_sets_the_checkpoints_of_a_run_aside(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    ask(capsys, "run tiny.yaml" if command == "run tiny.yaml" else "sweep tiny.yaml --nodes 1")
    run = RunDir(RUNS / "tiny" / next(iter(states())))
    end(run, "refused")
    (run.checkpoints / "step-00000005").mkdir(parents=True)
    assert "from scratch" in ask(capsys, f"{command} --from-scratch --dry-run")
    assert run.checkpoints.exists()
    ask(capsys, f"{command} --from-scratch")
    assert states() == {run.name: "queued"}
    assert [path.name for path in run.path.glob("checkpoints*")] == ["checkpoints.aside"]


def test_waiting_ends_with_the_runs_and_prints_their_states(
    capsys: pytest.CaptureFixture[str], cluster: FakeScheduler
) -> None:
    ask(capsys, "sweep tiny.yaml --nodes 1 2")
    end(RunDir(RUNS / "tiny/n1"), "finished")
    end(RunDir(RUNS / "tiny/n2"), "refused")
    assert "tiny/n1 done" in ask(capsys, "sweep tiny.yaml --nodes 1 --wait", code=0)
    assert "1 failed, 1 done" in ask(capsys, "sweep tiny.yaml --nodes 1 2 --wait", code=1)
    assert len(cluster.submitted) == 2


def test_waiting_ends_when_the_cluster_has_lost_the_job(
    capsys: pytest.CaptureFixture[str], cluster: FakeScheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.job = Job("ended")
    assert "1 run: 1 lost" in ask(capsys, "sweep tiny.yaml --nodes 1 --wait", code=1)


def test_deferred_runs_are_reported(capsys: pytest.CaptureFixture[str], cluster: FakeScheduler) -> None:
    cluster.has_room = SubmitQuota(jobs=1, limit="the limit of 3 jobs (MaxSubmitJobs of account physics)")
    assert submit.main(["sweep", "tiny.yaml", "--nodes", "1", "2", "4"]) == 1
    said = capsys.readouterr()
    assert "3 runs: 1 submitted, 2 deferred" in said.out
    assert said.err.splitlines()[-1] == (
        "2 runs deferred: the limit of 3 jobs (MaxSubmitJobs of account physics) is reached; "
        "the same command submits them later"
    )
    assert sorted(states().values()) == ["planned", "planned", "queued"]
    cluster.has_room = SubmitQuota()
    assert "2 submitted, 1 in progress" in ask(capsys, "sweep tiny.yaml --nodes 1 2 4")


def test_a_refused_sweep_leaves_nothing_and_a_hint_names_the_runs_folder(
    capsys: pytest.CaptureFixture[str], cluster: FakeScheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(batch: Batch) -> list[str]:
        raise SubmitError("sbatch refused it")

    take, root = cluster.submit, "my runs"
    monkeypatch.setattr(cluster, "submit", refuse)
    assert submit.main(["run", "tiny.yaml", "--runs", root]) == 1
    assert capsys.readouterr().err.splitlines()[-1] == "error: sbatch refused it"
    assert [path.name for path in Path(root, "tiny").iterdir()] == [".lock"]
    monkeypatch.setattr(cluster, "submit", take)
    assert submit.main(["run", "tiny.yaml", "--runs", root]) == 0
    assert "submit.py watch tiny --runs 'my runs'" in capsys.readouterr().out
    monkeypatch.setattr(cluster, "submit", refuse)
    assert submit.main(["run", "tiny.yaml", "--runs", root, "--nodes", "2"]) == 1
    expected = "error: sbatch refused it; list the runs: submit.py status tiny --runs 'my runs'"
    assert capsys.readouterr().err.splitlines()[-1] == expected
    assert len(read_runs(Path(root))) == 1


def test_the_cluster_and_warnings_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert submit.main(["sweep", "tiny.yaml", "--nodes", "1"]) == 0
    said = capsys.readouterr()
    assert "1 run: 1 submitted (cluster: local)\n" in said.out
    assert said.err.startswith("warning: n1: no step will be measured: ")
    assert submit.main(["sweep", "tiny.yaml", "--nodes", "1"]) == 0
    assert capsys.readouterr().err == "", "nothing starts"


def test_runs_on_slurm_are_not_moved_to_this_machine_by_auto(
    capsys: pytest.CaptureFixture[str], commands: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(selection, "chosen_scheduler", chosen_scheduler)
    monkeypatch.setattr(selection, "scheduler_to_resume", scheduler_to_resume)
    commands.add("sbatch", "exit 1")
    commands.add("scontrol", 'echo "Slurmctld(primary) at head is DOWN"')
    run = make_run(RUNS, "tiny/n1", "failed")
    intent = journal.entry(run, 0).path("intent")
    write_json(intent, read_json(intent) | {"cluster": "slurm"})
    for command in ("run tiny.yaml", "sweep tiny.yaml --nodes 1 2", "run tiny.yaml --dry-run", "resume tiny"):
        assert submit.main(command.split()) == 2
        said = capsys.readouterr()
        assert said.out == ""
        assert said.err.count("\n") == 1
        assert said.err.startswith(
            "error: --cluster=auto: these runs are on Slurm, and no controller answers"
        )
    assert [state.name for state in read_runs(RUNS)] == ["n1"]
    assert len(journal.entries(run)) == 1
    assert "on local" in ask(capsys, "run tiny.yaml --dry-run --cluster local")


def test_run_from_a_checkpoint(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    start = tmp_path / "runs/other/checkpoints/step-00000010"
    assert submit.main(["run", "tiny.yaml", "--from", str(start), "--dry-run"]) == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert error.startswith(f"error: checkpoint.start_from={start} does not exist; give the folder")
    start.mkdir(parents=True)
    (start / "manifest.json").touch()
    out = ask_json(capsys, "run tiny.yaml --nodes 1 --from runs/other/checkpoints/step-00000010")
    (made,) = out["runs"]
    config = read_json(RUNS / "tiny" / made["run"] / "run.json")["config"]
    assert config["checkpoint"]["start_from"] == str(start)
