"""`ingest`: run directories from a CSV table of step times of another program."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import submit
from analysis.read.load import load_runs
from analysis.read.run import Run, value_at
from analysis.report.sections.network import communication
from analysis.report.sections.step_time import waterfall
from analysis.results.curves import scaling_curves
from analysis.study import make_study
from disttrain.records.json_files import read_json, read_jsonl
from disttrain.records.metrics import Metrics
from disttrain.records.planned import RunRecord
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


SHORT = "step,rank,step_s,samples"
OTHER = "run,step,rank,step_s,samples"


def ingested(path: Path, lines: list[str], header: str = HEADER, *flags: str) -> list[Run]:
    """The runs of a table that can be read."""
    assert ingest(table(path / "other.csv", lines, header), *flags) == 0
    return load_runs([path / "runs" / "other"])


def test_an_ingested_sweep_is_loaded_with_hosts_phases_and_throughput(tmp_path: Path) -> None:
    one, two = ingested(tmp_path, [*rows("a", 1, 0.5), *rows("b", 2, 0.8)], HEADER, "--warmup-steps", "5")
    for run, nodes, rate in ((one, 1, 2 * 8 / 0.5), (two, 2, 4 * 8 / 0.8)):
        assert (run.included, run.ingested, run.problems, run.cluster) == (True, "other.csv", [], None)
        metrics = run.metrics
        assert (metrics.nodes, metrics.measured_steps, metrics.warmup_steps) == (nodes, 15, 5)
        assert metrics.samples_per_s == pytest.approx(rate)
        assert sorted(set(run.steps.step[run.steps.measured])) == [*range(6, 21)]
        assert "parameters" in metrics.null_reasons
    composition = one.metrics.composition
    assert (composition["compute_s"], composition["other_s"]) == pytest.approx((0.5 * 0.8, 0.5 * 0.2))
    assert composition["comm_wait_s"] is None
    hosts = dict(zip(two.steps.rank.tolist(), two.steps.host, strict=True))
    assert hosts == {0: "c0", 1: "c1", 2: "c0", 3: "c1"}
    assert one.record.ingested.rows == 40
    RunRecord.model_validate(read_json(one.folder.run_json))
    Metrics.model_validate(read_json(one.folder.metrics))
    for line in read_jsonl(one.folder.attempt(0).steps(0)):
        step = Step.model_validate(line)
        assert sum(getattr(step, name) or 0 for name in PHASES) == pytest.approx(step.step_s)
        assert (step.input_s, step.comm_wait_s, step.start_s) == (None, None, None)


@pytest.mark.parametrize(
    ("header", "lines", "flags", "figures"),
    [
        # the batch grows during the warm-up of 5 steps
        (
            SHORT,
            [f"{step},0,1.0,{20 if step <= 5 else 80}" for step in range(1, 31)],
            ["--warmup-steps", "5"],
            {"samples_per_s": 80, "global_batch_size": 80},
        ),
        # rank 1 computes 0.3 s longer: the other rank waits for it, and the transfer of both takes 0.1 s
        (
            "step,rank,step_s,compute_s,comm_transfer_s,samples",
            [
                f"{step},{rank},1.0,{times},8"
                for step in range(20)
                for rank, times in ((0, "0.6,0.4"), (1, "0.9,0.1"))
            ],
            [],
            {"composition.comm_wait_s": 0.15, "composition.comm_transfer_s": 0.1},
        ),
        # of four ranks two have rows, whose figures count for all
        (
            "step,rank,world_size,step_s",
            [f"{step},{rank},4,{0.4 + rank / 10}" for step in range(1, 30) for rank in (2, 3)],
            ["--global-batch-size", "64"],
            {
                "world_size": 4,
                "samples_per_s": 64 / 0.65,
                "step_time.mean_s": 0.6,
                "seconds_total": 29 * 0.65,
            },
        ),
        # the slow rank has rows of odd steps only; even steps would hide its time
        (
            SHORT,
            [
                f"{at},{rank},{0.5 + rank / 10},8"
                for at in range(1, 41)
                for rank in (0, 1)
                if not rank or at % 2
            ],
            [],
            {"samples_per_s": 16 / 0.55, "measured_steps": 10},
        ),
        (
            "step,rank,step_s,loss,samples",
            [f"{at},0,1,{3 - at},8" for at in range(3)],
            [],
            {"measured_steps": 0},
        ),
    ],
)
def test_figures_are_those_of_the_measured_steps_that_all_ranks_have(
    tmp_path: Path, header: str, lines: list[str], flags: list[str], figures: dict[str, Any]
) -> None:
    (run,) = ingested(tmp_path, lines, header, *flags)
    assert {name: value_at(run.metrics, name) for name in figures} == pytest.approx(figures)


def test_doubtful_rows_are_warnings(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = [
        f"{step},{rank},4,500,0.4,green" for step in range(30) for rank in (1, 2) if rank == 1 or step % 2
    ]
    (run,) = ingested(
        tmp_path, lines, "step,rank,world_size,step_s,compute_s,colour", "--global-batch-size", "4"
    )
    warnings = capsys.readouterr().err.replace("\N{NO-BREAK SPACE}", " ")
    for warning in (
        "columns that are not read: colour",
        "other/run: no rows of ranks 0, 3 of 4",
        "other/run: 15 steps without rows of all ranks left out",
        "other/run: 100 % of step_s is in no phase",
    ):
        assert warning in warnings
    assert run.note == "lacks rows of some ranks in 15 steps, left out"


BAD = [
    (["a,1,0,c0,fast,,8"], "other.csv:2, column 'step_s': 'fast' is not a number from 1e-09"),
    (["a,1,0,c0,0.5,,8", "a,2,0,c0,-1,,8"], "other.csv:3, column 'step_s': '-1' is not a number from"),
    (["a,1,0,c0,nan,,8"], "other.csv:2, column 'step_s': 'nan' is not a number from"),
    (["a,1,,c0,0.5,,8"], "other.csv:2, column 'rank': '' is not a whole number from 0"),
    (["a,1.5,0,c0,0.5,,8"], "other.csv:2, column 'step': '1.5' is not a whole number from 0"),
    (["a,1,0,c0,0.5,,8"] * 2, "other.csv:3, column 'step': rank 0 has a second row for step 1"),
    (["a,1,0,c0,0.5,0.6,8"], "other.csv:2, column 'step_s': 0.5 s is less than the sum of the phases"),
    (["a,1,0,c0,0.5,,8", "a,2,0,c1,0.5,,8"], "column 'host': 'c1' differs from an earlier row of the rank"),
    (["../a,1,0,c0,0.5,,8"], "other.csv:2, column 'run': '../a' is not a name of a folder"),
    (["a,1,0,c0,0.5"], "other.csv:2: 5 values for 7 columns"),
    (["a,1,0,c0,0.5,,"], "--global-batch-size N"),
    (["a,1,0,c0,0.5,,8", "a,1,1,c1,0.5,,8", "a,1,2,c1,0.5,,8"], "3 ranks do not divide by 2 nodes"),
    (["a,1,0,c0,0.5,,8", "a,2,1,c0,0.5,,8"], "no step has rows of all 2 ranks"),
    ([], "other.csv has no rows"),
]
HEADERS = [
    ("step,rank", "other.csv:1: no column 'step_s'"),
    ("step;rank;step_s", "other.csv:1: columns are separated by ';'"),
    ("step,rank,step_s,comput_s", "other.csv:1: unknown column 'comput_s'"),
    ("step,rank,step_s,step", "other.csv:1: two columns 'step'"),
]


@pytest.mark.parametrize(
    ("header", "lines", "message"),
    [
        *((HEADER, lines, message) for lines, message in BAD),
        *((header, ["1,0,0.5,1"], message) for header, message in HEADERS),
        ("step,rank,world_size,step_s,samples", ["1,4,4,0.5,8"], "rank 4 in a world of 4 ranks"),
    ],
)
def test_a_bad_table_is_refused_in_one_line_and_nothing_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], header: str, lines: list[str], message: str
) -> None:
    assert ingest(table(tmp_path / "other.csv", lines, header)) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("columns", "runs", "sizes"),
    [
        (
            "strategy,model,nodes",
            {"ddp,gpt": (1, 8), "fsdp,gpt": (1, 8), "ddp,vit": (1, 8)},
            [[1, 2], [1, 2], [1, 2]],
        ),
        ("model,strategy,nodes", {"gpt,ddp": (1, 8), "gpt, ddp": (2, 8)}, [[1, 2, 2, 4]]),  # 2x1 and 1x2
        ("model,strategy,nodes", {"gpt,ddp": (1, 8), "gpt,ddp ": (1, 16)}, [[1, 2], [1, 2]]),
        ("model,strategy,nodes", {"gpt,ddp": (1, 800), "gpt,ddp ": (1, 805)}, [[1, 2]]),  # it varies little
    ],
)
def test_runs_of_another_strategy_model_size_or_batch_are_no_repeats(
    tmp_path: Path, columns, runs, sizes
) -> None:
    lines = [
        f"{number}-{nodes},{step},{rank},0.5,{samples},{values},{nodes}"
        for number, (values, (ranks, samples)) in enumerate(runs.items())
        for nodes in (1, 2)
        for step in range(12)
        for rank in range(nodes * ranks)
    ]
    curves = scaling_curves(ingested(tmp_path, lines, f"{OTHER},{columns}"))
    assert sorted([point.world_size for point in curve.points] for curve in curves) == sizes


def test_runs_with_other_names_are_added_to_an_ingested_sweep_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def add(file: str, lines: list[str], sweep: str = "ours") -> int:
        return ingest(table(tmp_path / f"{file}.csv", lines), "--sweep", sweep)

    measured = fake_sweep(tmp_path / "runs", "measured", nodes=(1,), repeats=1)
    assert add("first", rows("a", 1, 0.5), measured.name) == 2
    assert "sweep 'measured' has runs that were not ingested (n1x1-r0)" in capsys.readouterr().err
    assert not (measured / "a").exists()
    assert add("first", rows("a", 1, 0.5) + rows("b", 2, 0.6)) == 0
    assert add("more", rows("a", 1, 0.5) + rows("c", 1, 0.51)) == 2
    assert "more.csv: runs a exist already" in capsys.readouterr().err
    ours = tmp_path / "runs" / "ours"
    assert not (ours / "c").exists()
    assert add("more", rows("c", 1, 0.51)) == 0
    (curve,) = scaling_curves(load_runs([ours]))
    assert [len(point.runs) for point in curve.points] == [2, 1]
    assert add("larger", [line.removesuffix("8") + "16" for line in rows("d", 1, 0.9)]) == 0
    curves = scaling_curves(load_runs([ours]))
    assert [len(point.runs) for curve in curves for point in curve.points] == [2, 1, 1]


@pytest.mark.usefixtures("empty_pngs")
@pytest.mark.parametrize("phases", [[], ["compute_s"], ["compute_s", "comm_wait_s", "comm_transfer_s"]])
def test_status_and_report_mark_ingested_runs_whatever_phases_they_have(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], phases: list[str]
) -> None:
    lines = [
        ",".join([f"n{nodes}-r{repeat},{step},{rank},{0.5 + 0.01 * (step % 3)},8", *["0.1"] * len(phases)])
        for nodes in (1, 2)
        for repeat in range(2)
        for step in range(1, 21)
        for rank in range(nodes)
    ]
    ingested(tmp_path, lines, ",".join([OTHER, *phases]))
    capsys.readouterr()
    shown = []
    for verb in ("status", "report"):
        assert submit.main([verb, "--runs", str(tmp_path / "runs"), "--json"]) == 0
        shown.append(json.loads(capsys.readouterr().out))
    status, report = shown
    assert [(run["state"], run["tags"]) for run in status["runs"]] == [("done", ["ingested"])] * 4
    assert "ingested" in {each["kind"] for each in report["report"]["caveats"]}


def test_phases_that_no_run_has_are_absent_from_sections(tmp_path: Path) -> None:
    """An absent phase is not a phase of zero seconds."""
    assert ingest(compute_and_transfer(tmp_path / "other.csv", 0.4, 0.02)) == 0
    study = make_study(load_runs([tmp_path / "runs" / "other"]))
    losses, messages = waterfall(study), communication(study)
    shown = {value for row in losses.tables[0].rows for value in row if isinstance(value, str)}
    assert "data transfer" in shown
    assert not shown & {"input", "waiting for peers", "optimizer", "checkpoint"}
    assert "waiting for peers" not in messages.figures[0].alt
