"""`sweep` and `run`: the runs that are submitted, kept, retried and named."""

from __future__ import annotations

from pathlib import Path

import pytest

from disttrain.records.json_files import read_json, write_json
from disttrain.records.planned import SweepRecord
from disttrain.records.run_directory import RunDir
from jobs.cli import selection
from jobs.cli.selection import chosen_scheduler, scheduler_to_resume
from jobs.core import journal
from jobs.core.processes import current_process
from jobs.schedulers.interface import Batch, Job, SubmitError, SubmitQuota
from jobs.status.run_state import read_runs
from tests.support.commands import Commands
from tests.support.jobs import FakeScheduler
from tests.support.states import make_run
from tests.support.verbs import RUNS, TINY, ask, ask_json, end, refused, states

pytestmark = pytest.mark.usefixtures("cluster")


def actions(capsys: pytest.CaptureFixture[str], command: str, code: int = 0) -> dict[str, str]:
    """The action on each run of a command line."""
    return {each["run"]: each["action"] for each in ask_json(capsys, command, code)["actions"]}


def test_each_run_is_submitted_once_and_ended_ones_are_kept_retried_or_blocked(
    capsys: pytest.CaptureFixture[str], cluster: FakeScheduler
) -> None:
    command = "sweep tiny.yaml --nodes 1 2 4"
    assert "disttrain watch tiny" in ask(capsys, "sweep tiny.yaml --nodes 1 2")
    assert states() == {"n1": "queued", "n2": "queued"}
    SweepRecord.model_validate(read_json(RUNS / "tiny/sweep.json"))
    assert actions(capsys, command) == {"n1": "in_progress", "n2": "in_progress", "n4": "submit"}
    assert len(cluster.submitted) == 3
    for name, cause in (("n1", "finished"), ("n2", "crashed"), ("n4", "refused")):
        end(RunDir(RUNS / "tiny" / name), cause)
    assert actions(capsys, command, code=1) == {"n1": "up_to_date", "n2": "retry", "n4": "blocked"}


@pytest.mark.parametrize("command", ["sweep tiny.yaml --nodes 1", "run tiny.yaml", "resume tiny"])
def test_from_scratch_sets_the_checkpoints_of_a_run_aside(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    ask(capsys, "sweep tiny.yaml --nodes 1")
    run = RunDir(RUNS / "tiny/n1")
    end(run, "refused")
    (run.checkpoints / "step-00000005").mkdir(parents=True)
    ask(capsys, f"{command} --from-scratch --dry-run")
    assert run.checkpoints.exists()
    ask(capsys, f"{command} --from-scratch")
    assert states() == {"n1": "queued"}
    assert [path.name for path in run.path.glob("checkpoints*")] == ["checkpoints.aside"]


def test_waiting_ends_with_the_runs_and_the_exit_code_counts_those_not_done(
    capsys: pytest.CaptureFixture[str], cluster: FakeScheduler
) -> None:
    ask(capsys, "sweep tiny.yaml --nodes 1 2")
    end(RunDir(RUNS / "tiny/n1"), "finished")
    end(RunDir(RUNS / "tiny/n2"), "refused")
    assert "tiny/n1 done" in ask(capsys, "sweep tiny.yaml --nodes 1 --wait")
    assert "1 failed, 1 done" in ask(capsys, "sweep tiny.yaml --nodes 1 2 --wait", code=1)
    cluster.job = Job("ended")
    waited = ask_json(capsys, "sweep tiny.yaml --nodes 4 --wait", code=1)
    assert [run["state"] for run in waited["runs"]] == ["lost"], "the cluster has lost its job"


def test_deferred_runs_are_an_error_and_submitted_later(
    capsys: pytest.CaptureFixture[str], cluster: FakeScheduler
) -> None:
    cluster.has_room = SubmitQuota(jobs=1, limit="the limit of 3 jobs")
    document = ask_json(capsys, "sweep tiny.yaml --nodes 1 2 4", code=1)
    assert [each["action"] for each in document["actions"]] == ["submit", "deferred", "deferred"]
    assert document["error"]["message"].startswith("2 runs deferred: the limit of 3 jobs is reached; ")
    assert sorted(states().values()) == ["planned", "planned", "queued"]
    cluster.has_room = SubmitQuota()
    again = actions(capsys, "sweep tiny.yaml --nodes 1 2 4")
    assert sorted(again.values()) == ["in_progress", "submit", "submit"]


def test_a_refused_sweep_leaves_nothing_and_a_hint_names_the_runs_folder(
    capsys: pytest.CaptureFixture[str], cluster: FakeScheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(batch: Batch) -> list[str]:
        raise SubmitError("sbatch refused it")

    take, command = cluster.submit, "run tiny.yaml --runs 'my runs'"
    monkeypatch.setattr(cluster, "submit", refuse)
    assert refused(capsys, command, code=1).splitlines()[-1] == "error: sbatch refused it"
    assert [path.name for path in Path("my runs/tiny").iterdir()] == [".lock"]
    monkeypatch.setattr(cluster, "submit", take)
    assert "disttrain watch tiny --runs 'my runs'" in ask(capsys, f"{command} --set optim.lr=0.5")
    monkeypatch.setattr(cluster, "submit", refuse)
    error = refused(capsys, f"{command} --nodes 2", code=1).splitlines()[-1]
    assert error.startswith("error: sbatch refused it")
    assert error.endswith("disttrain status tiny --runs 'my runs'")
    assert Path("my runs/tiny/sweep.json").exists()
    assert len(read_runs(Path("my runs"))) == 1


def test_warnings_are_on_runs_that_start(capsys: pytest.CaptureFixture[str]) -> None:
    (warning,) = ask_json(capsys, "sweep tiny.yaml --nodes 1")["warnings"]
    assert warning.startswith("n1: no step will be measured: ")
    assert ask_json(capsys, "sweep tiny.yaml --nodes 1")["warnings"] == []


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
        assert "--cluster=auto: these runs are on Slurm, and no controller" in refused(capsys, command)
    assert [state.name for state in read_runs(RUNS)] == ["n1"]
    assert len(journal.entries(run)) == 1
    elsewhere = ask_json(capsys, "run tiny.yaml --dry-run --cluster local")
    assert elsewhere["cluster"] == "local"
    (fallback,) = ask_json(capsys, "run tiny.yaml --dry-run --name other")["warnings"][:1]
    assert fallback.startswith("sbatch is installed but no Slurm controller answers")


def test_resume_by_auto_keeps_runs_of_this_machine_and_a_named_cluster_takes_them(
    capsys: pytest.CaptureFixture[str], commands: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(selection, "scheduler_to_resume", scheduler_to_resume)
    commands.add("sbatch", "exit 1")
    commands.add("scontrol", 'echo "Slurmctld(primary) at head is UP"')
    monkeypatch.setattr(selection, "chosen_scheduler", chosen_scheduler)
    make_run(RUNS, "tiny/n1", "failed")
    assert "(cluster: local)" in ask(capsys, "resume --dry-run")
    assert "(cluster: slurm)" in ask(capsys, "resume --dry-run --cluster slurm")


def test_run_from_a_checkpoint(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    start = tmp_path / "runs/other/checkpoints/step-00000010"
    error = refused(capsys, f"run tiny.yaml --from '{start}' --dry-run").splitlines()[-1]
    assert error.startswith(f"error: checkpoint.start_from={start} does not exist; ")
    start.mkdir(parents=True)
    (start / "manifest.json").touch()
    ask(capsys, "run tiny.yaml --nodes 1 --from runs/other/checkpoints/step-00000010")
    (path,) = (RUNS / "tiny").glob("*/run.json")
    assert read_json(path)["config"]["checkpoint"]["start_from"] == str(start)


def test_other_values_of_run_are_runs_of_the_same_sweep(capsys: pytest.CaptureFixture[str]) -> None:
    Path("tiny.yaml").write_text(TINY + "sweep: {axes: {resources.nodes: [2, 4]}, repeats: 3}\n")
    ask(capsys, "run tiny.yaml --nodes 2")
    ask(capsys, "run tiny.yaml --set optim.lr=0.5 --yes")
    ask(capsys, "sweep tiny.yaml --repeats 1")  # the same base: `run` ignores axes and repeats
    assert set(states()) == {"n2", "n1-lr0.5", "n4"}


def test_the_batch_sizes_of_run_do_not_depend_on_earlier_runs(capsys: pytest.CaptureFixture[str]) -> None:
    Path("tiny.yaml").write_text(TINY.replace("local_batch_size", "global_batch_size"))
    for nodes in (4, 2):
        ask(capsys, f"run tiny.yaml --nodes {nodes}")
    ask(capsys, "sweep tiny.yaml --nodes 2")  # its sizes are for its own base of 2 ranks
    assert read_json(RUNS / "tiny/sweep.json")["base"]["sweep"]["base_ranks"] == 2
    ask(capsys, "sweep tiny.yaml --nodes 1")
    ask(capsys, "run tiny.yaml --nodes 1")
    (other,) = (str(run.config_key) for run in read_runs(RUNS) if run.name.startswith("n1-"))
    assert set(states()) == {"n4", "n2", "n1", f"n1-{other[:6]}"}


@pytest.mark.parametrize("source", ["flag", "profile", "file"])
def test_gpus_fill_a_node_before_the_next(capsys: pytest.CaptureFixture[str], source: str) -> None:
    options = {"flag": "--gpus-per-node 4", "profile": "--cluster slurm --profile ./site.yaml", "file": ""}
    Path("site.yaml").write_text("gpus_per_node: 4\n")
    if source == "file":
        Path("tiny.yaml").write_text(TINY + "resources: {gpus_per_node: 4}\n")
    out = ask_json(capsys, f"sweep tiny.yaml --gpus 1 2 4 8 16 --dry-run {options[source]}")
    assert [plan["run"] for plan in out["plans"]] == ["n1-g1", "n1-g2", "n1-g4", "n2-g4", "n4-g4"]


def test_a_run_keeps_its_name_and_its_identity(
    capsys: pytest.CaptureFixture[str], cluster: FakeScheduler
) -> None:
    ask(capsys, "sweep tiny.yaml --nodes 1 --set train.seed=0,1")
    assert actions(capsys, "sweep tiny.yaml --nodes 1") == {"n1-seed0": "in_progress"}, "seed 0 is the base's"
    command = "run tiny.yaml --set optim.lr=0.5 job.time_limit_min"
    ask(capsys, f"{command}=1")
    run = RunDir(RUNS / "tiny/n1-lr0.5")
    end(run, "deadline")
    assert actions(capsys, f"{command}=60") == {"n1-lr0.5": "retry"}
    assert read_json(run.run_json)["config"]["job"]["time_limit_min"] == 60


def test_a_run_has_the_name_that_its_user_gives_it(
    capsys: pytest.CaptureFixture[str], cluster: FakeScheduler
) -> None:
    command = "run tiny.yaml --run-name first"
    assert actions(capsys, command) == {"first": "submit"}
    for again in (command, f"{command} --set job.time_limit_min=60", "run tiny.yaml"):
        assert actions(capsys, again) == {"first": "in_progress"}
    for wrong, reason in (
        (f"{command} --set optim.lr=0.5", "--run-name: tiny/first has another config"),
        ("run tiny.yaml --run-name second", "--run-name: tiny/first is the same run already"),
        ("run tiny.yaml --run-name report", "--run-name: 'report' cannot name a run: "),
        ("run tiny.yaml --run-name a/b", "--run-name: 'a/b' cannot name a run: "),
        (f"run tiny.yaml --run-name {161 * 'a'}", f"--run-name: '{161 * 'a'}' cannot name a run: "),
    ):
        assert refused(capsys, wrong).startswith(f"error: {reason}")
    assert (len(cluster.submitted), list(states())) == (1, ["first"])


@pytest.mark.parametrize(
    ("damaged", "action"),
    [("progress", "in_progress"), ("intent", "blocked"), ("intent and plan", "blocked")],
)
def test_a_damaged_record_does_not_start_a_run_again_under_another_name(
    capsys: pytest.CaptureFixture[str], cluster: FakeScheduler, damaged: str, action: str
) -> None:
    commands = [f"run tiny.yaml --nodes 2 --set job.env.OUT=/{folder}" for folder in "ab"]
    for command in commands:
        ask(capsys, command)
    first, second = read_runs(RUNS)
    assert (first.name, second.name) == ("n2", f"n2-{str(second.config_key)[:6]}")
    run = second.run
    code = read_json(run.run_json)["provenance"]["code"]["hash"]
    journal.claim(run, 0, process=current_process().as_dict(), job_id=None, code_hash=code)
    intent = journal.entry(run, 0).path("intent")
    paths = {"progress": [run.progress], "intent": [intent], "intent and plan": [intent, run.run_json]}
    for path in paths[damaged]:
        path.write_text("{")
    assert actions(capsys, commands[1], code=int(action == "blocked")) == {second.name: action}
    assert len(cluster.submitted) == 2


def test_another_base_that_came_first_is_refused_under_the_lock(
    capsys: pytest.CaptureFixture[str], cluster: FakeScheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another command writes `sweep.json` after this one has made its plan."""

    def choose(*_: object) -> FakeScheduler:
        base = {"optim": {"lr": 0.5}, "sweep": {"base_ranks": 1}}
        write_json(RUNS / "tiny/sweep.json", {"base": base})
        return cluster

    monkeypatch.setattr(selection, "chosen_scheduler", choose)
    assert "has another base config" in refused(capsys, "sweep tiny.yaml --nodes 1")
    assert (states(), cluster.submitted) == ({}, [])
