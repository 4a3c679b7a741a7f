"""Run identity: the same command names the same run, independent of commands in between."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from disttrain.records.json_files import read_json
from disttrain.records.planned import SweepRecord
from disttrain.records.run_directory import RunDir
from jobs.core import journal
from jobs.core.processes import current_process
from jobs.status.run_state import read_runs
from tests.support.jobs import FakeScheduler
from tests.support.verbs import RUNS, TINY, ask, ask_json, states

pytestmark = pytest.mark.usefixtures("cluster")


def test_other_values_of_run_are_runs_of_the_same_sweep(capsys: pytest.CaptureFixture[str]) -> None:
    ask(capsys, "run tiny.yaml --nodes 2")
    ask(capsys, "run tiny.yaml --set optim.lr=0.5")
    ask(capsys, "sweep tiny.yaml --nodes 2 4")
    assert set(states()) == {"n2-auto-b8-r0", "n1-single-b8-lr0.5-r0", "n4-auto-b8-r0"}


def test_run_names_do_not_depend_on_earlier_runs(capsys: pytest.CaptureFixture[str]) -> None:
    Path("tiny.yaml").write_text(TINY.replace("local_batch_size", "global_batch_size"))
    for nodes in (4, 2):
        ask(capsys, f"run tiny.yaml --nodes {nodes}")
    assert set(states()) == {"n4-auto-b2-r0", "n2-auto-b4-r0"}
    ask(capsys, "sweep tiny.yaml --nodes 2")  # its sizes are for its own base of 2 ranks
    assert read_json(RUNS / "tiny/sweep.json")["base"]["sweep"]["base_ranks"] == 2
    ask(capsys, "sweep tiny.yaml --nodes 1")
    ask(capsys, "run tiny.yaml --nodes 1")
    assert set(states()) == {"n4-auto-b2-r0", "n2-auto-b4-r0", "n1-single-b4-r0", "n1-single-b8-r0"}
    SweepRecord.model_validate(read_json(RUNS / "tiny" / "sweep.json"))


def test_run_ignores_the_axes_of_a_sweep_file(capsys: pytest.CaptureFixture[str]) -> None:
    Path("tiny.yaml").write_text(TINY + "sweep: {axes: {resources.nodes: [2, 4]}, repeats: 3}\n")
    ask(capsys, "run tiny.yaml")
    ask(capsys, "sweep tiny.yaml --repeats 1")  # the same base
    assert set(states()) == {"n1-single-b8-r0", "n2-auto-b8-r0", "n4-auto-b8-r0"}


def test_a_run_whose_axis_is_another_key_keeps_the_name_it_has(capsys: pytest.CaptureFixture[str]) -> None:
    ask(capsys, "sweep tiny.yaml --nodes 1 --set train.seed=0,1")
    again = ask_json(capsys, "sweep tiny.yaml --nodes 1")  # seed 0 is the base's
    assert [(run["run"], run["action"]) for run in again["actions"]] == [
        ("n1-single-b8-seed0-r0", "in_progress")
    ]


@pytest.mark.parametrize("broken", ["progress.json", "intent and run.json", "intent"])
def test_a_corrupt_file_does_not_start_a_run_again_under_another_name(
    capsys: pytest.CaptureFixture[str], cluster: FakeScheduler, broken: str
) -> None:
    ask(capsys, "sweep tiny.yaml --nodes 1")
    run = RunDir(RUNS / "tiny/n1-single-b8-r0")
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
    assert again["run"] == "n1-single-b8-r0"
    if broken == "progress.json":
        assert again["action"] == "in_progress"
    else:
        assert (again["action"], str(intent) in again["reason"]) == ("blocked", True)
    assert len(cluster.submitted) == 1


def test_a_corrupt_run_is_identified_by_the_key_in_its_name(
    capsys: pytest.CaptureFixture[str], cluster: FakeScheduler
) -> None:
    ask(capsys, "sweep tiny.yaml --nodes 2 --set parallel.strategy=auto,ddp")
    (auto,) = (state for state in read_runs(RUNS) if axes_of(state.run)["parallel.strategy"] == "auto")
    for path in (journal.entry(auto.run, 0).path("intent"), auto.run.run_json):
        path.write_text("{")
    (again,) = ask_json(capsys, "sweep tiny.yaml --nodes 2", code=1)["actions"]
    assert (again["run"], again["action"]) == (auto.name, "blocked")
    assert len(cluster.submitted) == 2


def axes_of(run: RunDir) -> dict[str, Any]:
    axes: dict[str, Any] = read_json(run.run_json)["axes"]
    return axes
