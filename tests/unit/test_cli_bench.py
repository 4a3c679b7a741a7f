"""`bench comm`: one job for each shape, and tables of what has been measured."""

from __future__ import annotations

from pathlib import Path

import pytest

import submit
from disttrain.records.json_files import read_json, write_json, write_text
from disttrain.records.run_directory import RunDir
from tests.support.comm_bench import result
from tests.support.fake_runs import table_rows
from tests.support.verbs import RUNS, ask, ask_json, end, states

pytestmark = pytest.mark.usefixtures("cluster")


def test_a_job_is_submitted_for_each_shape_with_the_sizes_as_given(capsys):
    command = "bench comm --nodes 2 4 --gpus-per-node 2 --device cpu --max-mb 64 --rows 1048576"
    assert "2 runs: 2 submitted" in ask(capsys, command)
    assert states() == {"n2-g2": "queued", "n4-g2": "queued"}
    config = read_json(RunDir(RUNS / "comm-bench" / "n4-g2").run_json)["config"]
    assert (config["resources"]["nodes"], config["resources"]["device"]) == (4, "cpu")
    words = " ".join(config["command"])
    assert words.startswith("-m disttrain.comm_bench --device cpu --max-mb 64.0 --size-factor 8 --repeats 15")
    assert words.endswith(" --rows 1048576")
    assert {each["action"] for each in ask_json(capsys, command)["actions"]} == {"in_progress"}


@pytest.mark.parametrize("sizes", ["--rounds 0", "--layers 0", "--rows -1", "--max-mb 0", "--max-mb nan"])
def test_sizes_that_measure_nothing_are_refused(sizes, capsys):
    assert submit.main(["bench", "comm", "--nodes", "2", *sizes.split()]) == 2
    assert "above 0" in capsys.readouterr().err
    assert not RUNS.exists()


def test_finished_runs_are_printed_and_written_but_not_by_a_dry_run(capsys):
    command = "bench comm --nodes 2 --device cpu"
    assert "-m disttrain.comm_bench" in ask(capsys, f"{command} --dry-run --cluster local")
    assert not RUNS.exists()
    ask(capsys, command)
    run = RunDir(RUNS / "comm-bench" / "n2")
    measured = result()
    zero = measured.steps[-1].model_copy(update={"name": "zero", "exposed_s": 0.1, "exposed_low_s": 0.0})
    write_json(
        run.comm_bench, measured.model_copy(update={"steps": [*measured.steps, zero]}).model_dump(mode="json")
    )
    end(run, "finished")
    ask(capsys, f"{command} --dry-run --cluster local")
    assert not Path("runs/comm-bench/report").exists()
    assert ask_json(capsys, command)["comm_bench"]["n2"]["gradient_bytes"] == 8_000_000
    assert Path("runs/comm-bench/report/comm_bench.png").exists()
    write_text(run.attempt(0).node_log(0), "the log\n")
    for verb in (command, "report comm-bench", "show comm-bench/n2", "logs comm-bench/n2 --node 0"):
        assert "n2: collectives (CPU, 2 nodes x 2 ranks" in ask(capsys, verb)
    report = read_json("runs/comm-bench/report/report.json")
    assert "scripts" not in [section["id"] for section in report["sections"]]
    rows = {row["name"]: row for row in table_rows(report, "comm_bench_steps_0")}
    topk = rows["topk"]["exposed_s"]
    assert rows["topk"]["bytes_per_s"] == pytest.approx(8_000_000 / topk["value"])
    assert rows["zero"]["bytes_per_s"] is None, "nothing is divided by a time that may be 0"
