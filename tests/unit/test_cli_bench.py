"""`bench comm`: one job for each shape, and tables of what has been measured."""

from __future__ import annotations

from pathlib import Path

import pytest

import submit
from disttrain.records.json_files import read_json, write_json, write_text
from disttrain.records.run_directory import RunDir
from tests.support.comm_bench import result
from tests.support.verbs import RUNS, ask, ask_json, end, states

pytestmark = pytest.mark.usefixtures("cluster")


def test_a_job_is_submitted_for_each_shape(capsys):
    out = ask(capsys, "bench comm --nodes 2 4 --gpus-per-node 2 --device cpu --max-mb 64")
    assert "2 runs: 2 submitted" in out
    assert states() == {"n2-g2": "queued", "n4-g2": "queued"}
    config = read_json(RunDir(RUNS / "comm-bench" / "n4-g2").run_json)["config"]
    assert config["resources"]["nodes"] == 4
    assert config["resources"]["device"] == "cpu"
    words = " ".join(config["command"])
    assert words.startswith("-m disttrain.comm_bench --device cpu --max-mb 64.0 --repeats 15")
    again = ask_json(capsys, "bench comm --nodes 2 4 --gpus-per-node 2 --device cpu --max-mb 64")
    assert {each["action"] for each in again["actions"]} == {"in_progress"}


def test_sizes_reach_the_job_as_they_were_given(capsys):
    ask(capsys, "bench comm --nodes 2 --device cpu --rows 1048576")
    config = read_json(RunDir(RUNS / "comm-bench" / "n2").run_json)["config"]
    assert config["command"][-2:] == ["--rows", "1048576"]


@pytest.mark.parametrize("given", ["--rounds 0", "--layers 0", "--rows -1", "--max-mb 0", "--max-mb nan"])
def test_sizes_that_measure_nothing_are_refused(given, capsys):
    assert submit.main(["bench", "comm", "--nodes", "2", *given.split()]) == 2
    assert "above 0" in capsys.readouterr().err
    assert not RUNS.exists()


def test_finished_runs_are_printed_and_written(capsys):
    command = "bench comm --nodes 2 --device cpu"
    ask(capsys, command)
    run = RunDir(RUNS / "comm-bench" / "n2")
    write_json(run.comm_bench, result().model_dump(mode="json"))
    end(run, "finished")
    out = ask(capsys, command)
    assert "n2: collectives (CPU, 2 nodes x 2 ranks" in out
    assert "hierarchical not measured: 1 x 2 ranks" in " ".join(out.split())
    assert Path("runs/comm-bench/report/comm_bench.png").exists()
    found = ask_json(capsys, command)
    assert found["comm_bench"]["n2"]["gradient_bytes"] == 8_000_000
    write_text(run.attempt(0).node_log(0), "the log\n")
    for verb in ("report comm-bench", "show comm-bench/n2", "logs comm-bench/n2 --node 0"):
        assert "n2: collectives (CPU, 2 nodes x 2 ranks" in ask(capsys, verb)
    sections = {each["id"]: each for each in read_json("runs/comm-bench/report/report.json")["sections"]}
    assert "scripts" not in sections
    assert "n2: DDP step" in sections["comm-bench"]["tables"][1]["caption"]


def test_a_dry_run_writes_nothing(capsys):
    out = ask(capsys, "bench comm --nodes 2 --dry-run --cluster local")
    assert "-m disttrain.comm_bench" in out
    assert not RUNS.exists()
