"""Run identity: the same command names the same run, independent of commands in between."""

from __future__ import annotations

from pathlib import Path

import pytest

import submit
from disttrain.records.json_files import read_json
from disttrain.records.planned import SweepRecord
from disttrain.records.run_directory import RunDir
from jobs.core import journal
from jobs.core.processes import current_process
from jobs.status.run_state import read_runs
from tests.support.jobs import FakeScheduler
from tests.support.verbs import RUNS, TINY, ask, ask_json, end, states

pytestmark = pytest.mark.usefixtures("cluster")


def test_other_values_of_run_are_runs_of_the_same_sweep(capsys: pytest.CaptureFixture[str]) -> None:
    ask(capsys, "run tiny.yaml --nodes 2")
    ask(capsys, "run tiny.yaml --set optim.lr=0.5")
    ask(capsys, "sweep tiny.yaml --nodes 2 4")
    assert set(states()) == {"n2", "n1-lr0.5", "n4"}


def test_the_batch_sizes_of_run_do_not_depend_on_earlier_runs(capsys: pytest.CaptureFixture[str]) -> None:
    Path("tiny.yaml").write_text(TINY.replace("local_batch_size", "global_batch_size"))
    for nodes in (4, 2):
        ask(capsys, f"run tiny.yaml --nodes {nodes}")
    assert set(states()) == {"n4", "n2"}
    ask(capsys, "sweep tiny.yaml --nodes 2")  # its sizes are for its own base of 2 ranks
    assert read_json(RUNS / "tiny/sweep.json")["base"]["sweep"]["base_ranks"] == 2
    ask(capsys, "sweep tiny.yaml --nodes 1")
    ask(capsys, "run tiny.yaml --nodes 1")
    (other,) = (str(run.config_key) for run in read_runs(RUNS) if run.name.startswith("n1-"))
    assert set(states()) == {"n4", "n2", "n1", f"n1-{other[:6]}"}
    SweepRecord.model_validate(read_json(RUNS / "tiny" / "sweep.json"))


def test_run_ignores_the_axes_of_a_sweep_file(capsys: pytest.CaptureFixture[str]) -> None:
    Path("tiny.yaml").write_text(TINY + "sweep: {axes: {resources.nodes: [2, 4]}, repeats: 3}\n")
    ask(capsys, "run tiny.yaml")
    ask(capsys, "sweep tiny.yaml --repeats 1")  # the same base
    assert set(states()) == {"n1", "n2", "n4"}


def test_a_run_whose_axis_is_another_key_keeps_the_name_it_has(capsys: pytest.CaptureFixture[str]) -> None:
    ask(capsys, "sweep tiny.yaml --nodes 1 --set train.seed=0,1")
    again = ask_json(capsys, "sweep tiny.yaml --nodes 1")  # seed 0 is the base's
    assert [(run["run"], run["action"]) for run in again["actions"]] == [("n1-seed0", "in_progress")]


@pytest.mark.parametrize("broken", ["progress.json", "intent and run.json", "intent"])
def test_a_corrupt_file_does_not_start_a_run_again_under_another_name(
    capsys: pytest.CaptureFixture[str], cluster: FakeScheduler, broken: str
) -> None:
    ask(capsys, "sweep tiny.yaml --nodes 1")
    run = RunDir(RUNS / "tiny/n1")
    code = read_json(run.run_json)["provenance"]["code"]["hash"]
    journal.claim(run, 0, process=current_process().as_dict(), job_id=None, code_hash=code)
    intent = journal.entry(run, 0).path("intent")
    paths = {
        "progress.json": [run.progress],
        "intent": [intent],
        "intent and run.json": [intent, run.run_json],
    }
    for path in paths[broken]:
        path.write_text("{")
    (again,) = ask_json(capsys, "sweep tiny.yaml --nodes 1", code=int(broken != "progress.json"))["actions"]
    assert again["run"] == "n1"
    if broken == "progress.json":
        assert again["action"] == "in_progress"
    else:
        assert (again["action"], str(intent) in again["reason"]) == ("blocked", True)
    assert len(cluster.submitted) == 1


def test_a_corrupt_run_is_identified_by_the_key_in_its_name(
    capsys: pytest.CaptureFixture[str], cluster: FakeScheduler
) -> None:
    commands = [f"run tiny.yaml --nodes 2 --set job.env.OUT=/{folder}" for folder in "ab"]
    for command in commands:
        ask(capsys, command)
    first, second = read_runs(RUNS)
    assert (first.name, second.name) == ("n2", f"n2-{str(second.config_key)[:6]}")
    for path in (journal.entry(second.run, 0).path("intent"), second.run.run_json):
        path.write_text("{")
    (again,) = ask_json(capsys, commands[1], code=1)["actions"]
    assert (again["run"], again["action"]) == (second.name, "blocked")
    assert len(cluster.submitted) == 2


def test_a_run_has_the_name_that_its_user_gives_it(
    capsys: pytest.CaptureFixture[str], cluster: FakeScheduler
) -> None:
    command = "run tiny.yaml --run-name first"
    for _ in range(2):
        ask(capsys, command)
    (again,) = ask_json(capsys, f"{command} --set job.time_limit_min=60")["actions"]
    assert (again["run"], again["action"]) == ("first", "in_progress")
    (again,) = ask_json(capsys, "run tiny.yaml")["actions"]
    assert (again["run"], again["action"]) == ("first", "in_progress")
    for refused, reason in (
        (f"{command} --set optim.lr=0.5", "--run-name: tiny/first has another config; give this run another"),
        ("run tiny.yaml --run-name second", "--run-name: tiny/first is the same run already"),
        ("run tiny.yaml --run-name report", "--run-name: 'report' cannot name a run: "),
        ("run tiny.yaml --run-name a/b", "--run-name: 'a/b' cannot name a run: "),
        (f"run tiny.yaml --run-name {161 * 'a'}", f"--run-name: '{161 * 'a'}' cannot name a run: "),
    ):
        assert submit.main(refused.split()) == 2
        assert capsys.readouterr().err.startswith(f"error: {reason}")
    assert len(cluster.submitted) == 1
    assert list(states()) == ["first"]


def test_more_time_continues_the_same_run(capsys: pytest.CaptureFixture[str], cluster: FakeScheduler) -> None:
    ask(capsys, "run tiny.yaml --set job.time_limit_min=1 optim.lr=0.5")
    (run,) = read_runs(RUNS)
    assert run.name == "n1-lr0.5"
    end(run.run, "deadline")
    ask(capsys, "run tiny.yaml --set job.time_limit_min=60 optim.lr=0.5")
    assert len(cluster.submitted) == 2
    assert list(states()) == ["n1-lr0.5"]
    assert read_json(run.run.run_json)["config"]["job"]["time_limit_min"] == 60
