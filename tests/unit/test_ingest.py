"""`ingest`: run directories from a CSV table of step times of another program."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest

import submit
from analysis.read.frames import load, load_frames
from analysis.read.load import load_runs
from analysis.report.sections import communication, waterfall
from analysis.results.curves import scaling_curves
from analysis.study import make_study
from disttrain.records.json_files import read_json, read_jsonl
from disttrain.records.metrics import Metrics
from disttrain.records.planned import RunRecord
from disttrain.records.run_directory import RunDir
from disttrain.records.steps import PHASES, Step
from tests.support.fake_runs import fake_sweep

HEADER = "run,step,rank,host,step_s,compute_s,samples"


def table(path: Path, lines: list[str], header: str = HEADER) -> Path:
    path.write_text("\n".join([header, *lines]) + "\n")
    return path


def compute_and_transfer(path: Path, compute_s: float, transfer_s: float) -> Path:
    """A table of runs on 1 and 2 nodes with a rank each; the transfer takes `transfer_s` for each node."""
    lines = [
        f"n{nodes},{step},{rank},0.5,{compute_s},{transfer_s * nodes},8"
        for nodes in (1, 2)
        for step in range(20)
        for rank in range(nodes)
    ]
    return table(path, lines, "run,step,rank,step_s,compute_s,comm_transfer_s,samples")


def rows(run: str, nodes: int, step_s: float, steps: int = 20) -> list[str]:
    """Two ranks a node in round-robin order, of which rank 1 computes the longest."""
    return [
        f"{run},{step},{rank},c{rank % nodes},{step_s},{step_s * (0.9 if rank == 1 else 0.7)},8"
        for step in range(1, steps + 1)
        for rank in range(2 * nodes)
    ]


def ingest(path: Path, *flags: str) -> int:
    return submit.main(["ingest", str(path), "--runs", str(path.parent / "runs"), *flags])


def test_an_ingested_sweep_is_loaded_with_hosts_phases_and_throughput(tmp_path: Path) -> None:
    path = table(tmp_path / "other.csv", [*rows("a", 1, 0.5), *rows("b", 2, 0.8)])
    assert ingest(path, "--warmup-steps", "5") == 0
    frames = load_frames([tmp_path / "runs" / "other"])
    runs = frames.runs.set_index("run")
    assert runs["included"].all()
    assert runs["ingested"].tolist() == ["other.csv"] * 2
    assert runs["nodes"].tolist() == [1, 2]
    assert runs["measured_steps"].tolist() == [15, 15]
    assert runs["samples_per_s"].tolist() == pytest.approx([2 * 8 / 0.5, 4 * 8 / 0.8])
    assert runs.loc["a", "compute_s"] == pytest.approx(0.5 * 0.8)
    assert runs.loc["a", "other_s"] == pytest.approx(0.5 * 0.2)
    assert pd.isna(runs.loc["a", "comm_wait_s"])
    assert frames.problems == ()
    steps = frames.steps[frames.steps["run"].str.endswith("/b")]
    assert dict(zip(steps["rank"], steps["host"], strict=True)) == {0: "c0", 1: "c1", 2: "c0", 3: "c1"}
    assert sorted(set(steps.loc[steps["measured"], "step"])) == list(range(6, 21))


def test_throughput_is_samples_over_time_of_the_measured_steps(tmp_path: Path) -> None:
    """The batch grows from 20 to 80 samples during the warm-up of 5 steps, at steps of one second."""
    lines = [f"a,{step},0,c0,1.0,,{20 if step <= 5 else 80}" for step in range(1, 31)]
    assert ingest(table(tmp_path / "other.csv", lines), "--warmup-steps", "5") == 0
    (row,) = load([tmp_path / "runs" / "other"]).to_dict("records")
    assert (row["samples_per_s"], row["global_batch_size"]) == (80, 80)


def test_one_column_of_communication_is_divided_into_waiting_and_transfer(tmp_path: Path) -> None:
    """Rank 1 computes 0.3 s longer: the other rank waits for it, and the transfer of both takes 0.1 s."""
    lines = [
        f"a,{step},{rank},1.0,{compute_s},{comm_s},8"
        for step in range(1, 31)
        for rank, compute_s, comm_s in ((0, 0.6, 0.4), (1, 0.9, 0.1))
    ]
    path = table(tmp_path / "other.csv", lines, "run,step,rank,step_s,compute_s,comm_transfer_s,samples")
    assert ingest(path) == 0
    (row,) = load([tmp_path / "runs" / "other"]).to_dict("records")
    assert (row["comm_wait_s"], row["comm_transfer_s"]) == pytest.approx((0.15, 0.1))


def test_records_fit_their_schemas_and_name_their_origin(tmp_path: Path) -> None:
    path = table(tmp_path / "other.csv", rows("a", 1, 0.5))
    assert ingest(path, "--sweep", "megatron") == 0
    run = RunDir(tmp_path / "runs" / "megatron" / "a")
    record = RunRecord.model_validate(read_json(run.run_json))
    assert record.ingested is not None
    assert (record.ingested.source, record.ingested.rows) == ("other.csv", 40)
    assert record.cluster is None
    metrics = Metrics.model_validate(read_json(run.metrics))
    assert metrics.parameters is None
    assert "parameters" in metrics.null_reasons
    for line in read_jsonl(run.attempt(0).steps(0)):
        step = Step.model_validate(line)
        assert sum(getattr(step, name) or 0 for name in PHASES) == pytest.approx(step.step_s)
        assert (step.input_s, step.comm_wait_s, step.start_s) == (None, None, None)


@pytest.mark.usefixtures("empty_pngs")
def test_status_and_report_mark_ingested_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = [row for repeat in range(2) for n in (1, 2) for row in rows(f"n{n}-r{repeat}", n, 0.5 + n / 10)]
    assert ingest(table(tmp_path / "other.csv", lines)) == 0
    capsys.readouterr()
    found = []
    for verb in ("status", "report"):
        assert submit.main([verb, "--runs", str(tmp_path / "runs"), "--json"]) == 0
        found.append(json.loads(capsys.readouterr().out))
    status, report = found
    assert [(run["state"], run["tags"]) for run in status["runs"]] == [("done", ["ingested"])] * 4
    assert "ingested" in {each["kind"] for each in report["report"]["caveats"]}
    assert "Ingested" in Path(report["page"]).read_text()


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["a,1,0,c0,fast,,8"], "other.csv:2, column 'step_s': 'fast' is not a number from 1e-09"),
        (["a,1,0,c0,0.5,,8", "a,2,0,c0,-1,,8"], "other.csv:3, column 'step_s': '-1' is not a number from"),
        (["a,1,0,c0,nan,,8"], "other.csv:2, column 'step_s': 'nan' is not a number from"),
        (["a,1,,c0,0.5,,8"], "other.csv:2, column 'rank': '' is not a whole number from 0"),
        (["a,1.5,0,c0,0.5,,8"], "other.csv:2, column 'step': '1.5' is not a whole number from 0"),
        (
            ["a,1,0,c0,0.5,,8", "a,1,0,c0,0.5,,8"],
            "other.csv:3, column 'step': rank 0 has a second row for step 1",
        ),
        (
            ["a,1,0,c0,0.5,0.6,8"],
            "other.csv:2, column 'step_s': 0.5 s is less than the sum of the phases",
        ),
        (
            ["a,1,0,c0,0.5,,8", "a,2,0,c1,0.5,,8"],
            "other.csv:3, column 'host': 'c1' differs from an earlier row of the rank",
        ),
        (["../a,1,0,c0,0.5,,8"], "other.csv:2, column 'run': '../a' is not a name of a folder"),
        (["a,1,0,c0,0.5"], "other.csv:2: 5 values for 7 columns"),
        (["a,1,0,c0,0.5,,"], "--global-batch-size N"),
        (["a,1,0,c0,0.5,,8", "a,1,1,c1,0.5,,8", "a,1,2,c1,0.5,,8"], "3 ranks do not divide by 2 nodes"),
        ([], "other.csv has no rows"),
    ],
)
def test_a_bad_table_is_refused_in_one_line_and_nothing_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], lines: list[str], message: str
) -> None:
    assert ingest(table(tmp_path / "other.csv", lines)) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("header", "message"),
    [
        ("step,rank", "other.csv:1: no column 'step_s'"),
        ("step;rank;step_s", "other.csv:1: columns are separated by ';'"),
        ("step,rank,step_s,comput_s", "other.csv:1: unknown column 'comput_s'"),
        ("step,rank,step_s,step", "other.csv:1: two columns 'step'"),
    ],
)
def test_a_bad_header_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], header: str, message: str
) -> None:
    assert ingest(table(tmp_path / "other.csv", ["1,0,0.5,1"], header)) == 2
    assert message in capsys.readouterr().err


def test_missing_ranks_and_unread_columns_are_warnings(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = [f"{step},2,4,0.5,green" for step in range(1, 30)]
    path = table(tmp_path / "other.csv", lines, "step,rank,world_size,step_s,colour")
    assert ingest(path, "--global-batch-size", "64") == 0
    warnings = capsys.readouterr().err
    assert "columns that are not read: colour" in warnings
    assert "other/run: no rows of ranks 0, 1, 3 of 4" in warnings
    (row,) = load([tmp_path / "runs" / "other"]).itertuples()
    assert (row.world_size, row.samples_per_s) == (4, pytest.approx(128))


@pytest.mark.usefixtures("empty_pngs")
@pytest.mark.parametrize("phases", ["", "compute_s", "compute_s,comm_wait_s,comm_transfer_s"])
def test_a_report_is_made_with_any_phases(tmp_path: Path, phases: str) -> None:
    """A section that needs an absent phase is left out."""
    names = [name for name in phases.split(",") if name]
    values = "".join(",0.1" for _ in names)
    lines = [
        f"n{nodes}-r{repeat},{step},{rank},{0.5 + 0.01 * (step % 3)},8{values}"
        for nodes in (1, 2)
        for repeat in range(2)
        for step in range(1, 21)
        for rank in range(nodes)
    ]
    path = table(tmp_path / "other.csv", lines, ",".join(["run,step,rank,step_s,samples", *names]))
    assert ingest(path) == 0
    assert submit.main(["report", "--runs", str(tmp_path / "runs")]) == 0


def efficiencies(sweep: Path) -> dict[str, list[tuple[int, int, float]]]:
    """By label of the curve: ranks, repeats and efficiency of each size."""
    return {
        curve.label: [
            (point.world_size, len(point.runs), round(point.efficiency.value, 6))
            for point in curve.points
            if point.efficiency
        ]
        for curve in scaling_curves(load_runs([sweep]))
    }


def test_runs_of_another_strategy_model_or_size_are_no_repeats(tmp_path: Path) -> None:
    header = "run,nodes,strategy,model,step,rank,step_s,samples"
    lines = [
        f"{strategy}-{model}-n{nodes}x{ranks},{nodes},{strategy},{model},{step},{rank},{seconds},8"
        for strategy, model, ranks, seconds in (
            ("ddp", "gpt", 1, 0.5),
            ("fsdp", "gpt", 1, 0.7),
            ("ddp", "vit", 1, 0.2),
            ("ddp", "gpt", 2, 0.9),
        )
        for nodes in (1, 2)
        for step in range(20)
        for rank in range(nodes * ranks)
    ]
    assert ingest(table(tmp_path / "other.csv", lines, header)) == 0
    found = efficiencies(tmp_path / "runs" / "other")
    sizes = sorted([ranks for ranks, *_ in points] for points in found.values())
    assert sizes == [[1, 2], [1, 2], [1, 2, 2, 4]], "2x1 and 1x2 are two points of one curve"
    assert {repeats for points in found.values() for _, repeats, _ in points} == {1}


@pytest.mark.parametrize(("other", "curves"), [(16, 2), (8.05, 1)])
def test_runs_of_another_batch_are_no_repeats(tmp_path: Path, other: float, curves: int) -> None:
    """A batch that varies little is that of a repeat."""
    lines = [
        f"{run},{step},0,0.5,{round(1000 * samples)}"
        for run, samples in (("a", 8), ("b", other))
        for step in range(20)
    ]
    path = table(tmp_path / "other.csv", lines, "run,step,rank,step_s,samples")
    assert ingest(path) == 0
    assert len(efficiencies(tmp_path / "runs" / "other")) == curves


def test_steps_without_rows_of_a_rank_are_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Rank 1, the slow one, has rows of odd steps only; even steps would hide its time."""
    lines = [
        f"n{nodes},{step},{rank},{0.5 + 0.1 * rank},8"
        for nodes in (1, 2)
        for step in range(1, 41)
        for rank in range(nodes)
        if rank == 0 or step % 2
    ]
    path = table(tmp_path / "other.csv", lines, "run,step,rank,step_s,samples")
    assert ingest(path) == 0
    assert "other/n2: 20 steps without rows of all ranks left out" in capsys.readouterr().err
    runs = load([tmp_path / "runs" / "other"]).set_index("run")
    assert runs.loc["n2", "samples_per_s"] == pytest.approx(16 / 0.55)
    assert runs.loc["n2", "measured_steps"] == 10
    assert runs["note"].tolist() == ["", "lacks rows of some ranks in 20 steps, left out"]


def test_a_run_without_a_complete_step_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = table(tmp_path / "other.csv", ["1,0,0.5,8", "2,1,0.5,8"], "step,rank,step_s,samples")
    assert ingest(path) == 2
    assert "no step has rows of all 2 ranks" in capsys.readouterr().err


def test_a_sweep_with_runs_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sweep = fake_sweep(tmp_path / "runs", "measured", nodes=(1,), repeats=1)
    path = table(tmp_path / "other.csv", rows("a", 1, 0.5))
    assert ingest(path, "--sweep", sweep.name) == 2
    assert "sweep 'measured' has runs that were not ingested (n1x1-r0)" in capsys.readouterr().err
    assert not (sweep / "a").exists()


def test_runs_with_other_names_are_added_to_an_ingested_sweep(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = table(tmp_path / "first.csv", rows("a", 1, 0.5) + rows("b", 2, 0.6))
    assert ingest(first, "--sweep", "ours") == 0
    more = table(tmp_path / "more.csv", rows("a", 1, 0.5) + rows("c", 1, 0.51) + rows("b", 2, 0.6))
    assert ingest(more, "--sweep", "ours") == 2
    assert "more.csv: runs a, b exist already" in capsys.readouterr().err
    assert not (tmp_path / "runs" / "ours" / "c").exists()
    assert ingest(table(more, rows("c", 1, 0.51)), "--sweep", "ours") == 0
    (curve,) = scaling_curves(load_runs([tmp_path / "runs" / "ours"]))
    assert [len(point.runs) for point in curve.points] == [2, 1]
    larger = table(tmp_path / "larger.csv", [line.removesuffix("8") + "16" for line in rows("d", 1, 0.9)])
    assert ingest(larger, "--sweep", "ours") == 0
    curves = scaling_curves(load_runs([tmp_path / "runs" / "ours"]))
    assert [len(point.runs) for curve in curves for point in curve.points] == [2, 1, 1]


def test_a_step_in_milliseconds_beside_phases_in_seconds_is_a_warning(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = table(tmp_path / "other.csv", [f"a,{step},0,c0,500,0.4,8" for step in range(20)])
    assert ingest(path) == 0
    assert "other/a: 100% of step_s is in no phase" in capsys.readouterr().err.replace(" %", "%")


def test_phases_that_no_run_has_are_absent_from_sections(tmp_path: Path) -> None:
    """An absent phase is not a phase of zero seconds."""
    assert ingest(compute_and_transfer(tmp_path / "other.csv", 0.4, 0.02)) == 0
    runs = load_runs([tmp_path / "runs" / "other"])
    study = make_study(runs)
    losses, messages = waterfall.build(study), communication.build(study)
    assert losses is not None
    assert messages is not None
    shown = {value for row in losses.tables[0].rows for value in row if isinstance(value, str)}
    assert {"data transfer"} <= shown
    assert not shown & {"input", "waiting for peers", "optimizer", "checkpoint"}
    (figure,) = messages.figures
    assert figure.title == "Communication"
    assert "data transfer" in figure.alt
    assert "waiting for peers" not in figure.alt
    assert "hidden" not in figure.alt
