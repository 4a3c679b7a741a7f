"""Sections of the report: what each shows of a study, and that it vanishes where there is nothing to show."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from analysis.read.run import CurvePoint, Run
from analysis.report.model import DEFINITIONS
from analysis.report.section import Section
from analysis.report.sections import build_all
from analysis.report.sections.cost import goodput
from analysis.report.sections.distributions import distributions
from analysis.report.sections.hardware import memory, utilization
from analysis.report.sections.network import communication
from analysis.report.sections.runs import provenance, runs, scripts
from analysis.report.sections.step_time import composition, pop
from analysis.report.sections.training import training
from analysis.report.sentences import say
from analysis.stats.estimates import Estimate
from analysis.stats.stationarity import Change, Unseen
from analysis.study import make_study
from disttrain.records.communication import CollectiveSummary, CommSummary
from disttrain.records.hardware import GpuSummary
from disttrain.records.json_files import write_json
from disttrain.records.run_directory import RunDir
from tests.support.golden import golden
from tests.support.straggler_records import delays
from tests.support.studies import changed, delayed, placed, rows_of, runs_of, section_of, study_of

CONFIGURATIONS = [{"optim.lr": 0.001}, {"optim.lr": 0.002}]


@pytest.fixture(scope="module")
def default() -> list[Section]:
    """Sections of the report on a sweep of 1, 2 and 4 nodes with three repeats."""
    return build_all(study_of(all_ranks=True))


def one_run() -> Run:
    return runs_of(nodes=(1,), repeats=1)[0]


def lines_of(section: Section, figure: str) -> list[list[float]]:
    """Heights of the lines of a figure."""
    (shown,) = [each for each in section.figures if each.name == figure]
    return [list(line.get_ydata()) for line in shown.drawn.axes[0].lines]  # type: ignore[arg-type]


def with_curve(run: Run, name: str, *points: CurvePoint) -> Run:
    return replace(run, curves={**run.curves, name: points})


def test_names_are_unique_and_lead_to_what_exists(default: list[Section]) -> None:
    figures = [figure for section in default for figure in section.figures]
    tables = [table for section in default for table in section.tables]
    for names in ([each.name for each in figures], [each.name for each in tables]):
        assert len(set(names)) == len(names) > 10
    assert all(figure.alt for figure in figures)
    assert all(len(table.sources) in (0, len(table.rows)) for table in tables)
    linked = {column.formula_id for table in tables for column in table.columns if column.formula_id}
    assert {"throughput", "phases"} <= linked <= {each["id"] for each in DEFINITIONS}


def test_nothing_finished_leaves_only_the_runs_and_their_origin() -> None:
    planned = replace(one_run(), included=False, metrics=None, usage=None)
    assert [section.id for section in build_all(make_study([planned]))] == ["runs", "reproduction"]
    assert build_all(make_study([])) == []


@pytest.mark.parametrize("repeats", [3, 1])
def test_means_have_their_interval_and_number_of_repeats(default: list[Section], repeats: int) -> None:
    sections = default if repeats == 3 else build_all(study_of(repeats=1, all_ranks=True))
    tables = [table for section in sections for table in section.tables]
    for name in ("composition", "communication", "memory", "goodput", "pop_factors"):
        (table,) = [each for each in tables if each.name == name]
        means = [value for row in table.rows for value in row if isinstance(value, Estimate)]
        assert {mean.repeats for mean in means} == {repeats}
        assert all((mean.low is not None) == (repeats > 1) for mean in means if mean.basis != "maximum")


def test_phases_sum_to_the_step_and_those_too_short_to_show_are_left_out() -> None:
    section = section_of(composition, study_of())
    for row in rows_of(section):
        phases = [value.value for name, value in row.items() if name not in ("size", "step_s") and value]
        assert sum(phases) == pytest.approx(row["step_s"].value)
        assert "checkpoint_s" not in row
    long = section_of(composition, study_of(nodes=(1,), repeats=1, step_s=1.1))  # of phases below 1 s
    assert long.figures[0].drawn.axes[0].get_xlabel().endswith("(s)")


def comm(total_s: dict[str, float]) -> CommSummary:
    """Profiled collectives of these durations."""
    common = {"hidden_s": 0.01, "exposed_s": 0.01, "bus_bytes_per_s": 1e9}
    collectives = [
        CollectiveSummary(
            kind=kind,
            bucket=0,
            bytes=9,
            total_s=seconds,
            transfer_s=0.01,
            algorithm_bytes_per_s=1e9,
            **common,
        )
        for kind, seconds in total_s.items()
    ]
    return CommSummary(
        method="profiler", sampled_steps=1, count=2, bytes=9, total_s=0.02, compute_s=0.05,
        collectives=collectives, **common,
    )  # fmt: skip


def test_the_eight_collectives_with_the_longest_means_are_listed_with_their_runs() -> None:
    repeats = [{f"op{at}": times * (at + 1) for at in range(10)} for times in (0.001, 0.003)]
    known = runs_of(nodes=(2, 4), repeats=2)
    profiled = [changed(run, comm=comm(repeats[at % 2])) for at, run in enumerate(known)]
    section = section_of(communication, profiled)
    rows = rows_of(section, "collectives")
    assert [row["collective"] for row in rows] == [f"op{at} 0" for at in range(9, 1, -1)] * 2
    assert rows[0]["total_s"].value == pytest.approx(0.02)
    sources = section.tables[1].sources
    assert [run.name for run in sources[0]] == ["n2x1-r0", "n2x1-r1"]
    assert [run.name for run in sources[8]] == ["n4x1-r0", "n4x1-r1"]


def test_communication_over_steps_and_the_size_from_which_it_is_longest() -> None:
    history = [CurvePoint(step, ratio=step / 100) for step in (11, 50, 110)]
    large = runs_of(nodes=(1, 8, 16), repeats=1)
    section = section_of(
        communication, [with_curve(run, "communication_computation_history", *history) for run in large]
    )
    assert section.paragraphs == [say("communication_longest", "16 ranks")]
    assert lines_of(section, "communication_ratio") == [[0.11, 0.5, 1.1]] * 3
    small = section_of(communication, study_of(nodes=(1, 2), repeats=1))
    assert (small.key, small.paragraphs, len(small.figures)) == ("15.0 %", [], 1)
    assert communication(study_of(nodes=(1,))) is None


def test_losses_after_other_numbers_of_steps_are_apart() -> None:
    longer, *known = runs_of(nodes=(1,))
    section = section_of(training, [changed(longer, steps=220, skipped_steps=3), *known])
    two, one = rows_of(section)
    assert (two["steps"], two["repeats"], two["skipped_steps"]) == (110, 2, None)
    assert (one["steps"], one["repeats"], one["skipped_steps"]) == (220, 1, 3)


@pytest.mark.parametrize("accuracy", [0.75, None])
def test_accuracy_stands_beside_the_loss_and_else_the_gradient_norm(accuracy: float | None) -> None:
    metrics: dict[str, float | None] = {} if accuracy is None else {"accuracy": accuracy}
    validations = [CurvePoint(step, loss=1.0, metrics=metrics) for step in (50, 110)]
    norms = [CurvePoint(step, grad_norm=norm) for step, norm in ((1, 0.0), (2, 5.0))]
    run = with_curve(with_curve(one_run(), "eval_history", *validations), "grad_norm_history", *norms)
    section = section_of(training, [run])
    assert lines_of(section, "training")[1] == [1.0, 1.0]
    assert section.figures[0].drawn.axes[0].lines[1].get_marker() == "o", "validations are rings"
    if accuracy:
        assert lines_of(section, "accuracy") == [[0.75, 0.75]]
    else:
        ((zero, norm),) = lines_of(section, "gradient_norm")
        assert zero != zero, "a logarithmic axis has no zero"
        assert norm == 5.0


@pytest.mark.parametrize(("bits", "sentence"), [(4.3, [0.5]), (5.3, [-0.5]), (None, [])])
def test_learning_is_judged_against_the_unigram_entropy(bits: float | None, sentence: list[float]) -> None:
    """The corpus has 4.8 bits."""
    metrics: dict[str, float | None] = {} if bits is None else {"bits_per_byte": bits}
    run = with_curve(one_run(), "eval_history", CurvePoint(9, 3.0, metrics=metrics))
    assert section_of(training, [run]).conclusion == say("training", sentence)


def gpu(**values: float) -> GpuSummary:
    """A summary of one GPU that measured these values alone."""
    counts = {"gpus": 1, "gpus_lost": 0, "samples": 9, "sampled_s": 1.0}
    names = set(GpuSummary.model_fields) - {"schema_version"}
    return GpuSummary.model_validate(dict.fromkeys(names) | counts | values)


def test_utilization_is_that_of_gpus_where_one_was_measured() -> None:
    known = runs_of(nodes=(1, 2), repeats=1)
    processes = SimpleNamespace(cpu_percent=150)
    on_cpu = section_of(utilization, [changed(run, processes=processes) for run in known])
    assert on_cpu.conclusion == say("utilization", False, "1.50")
    assert [figure.name for figure in on_cpu.figures] == ["utilization"]
    measured = gpu(utilization=0.5, nvlink_tx_bytes_per_s=5e9, pcie_rx_bytes_per_s=1e9)
    on_gpu = section_of(utilization, [changed(run, gpu=measured) for run in known])
    assert on_gpu.conclusion == say("utilization", True, "50.0 %")
    (row, _) = rows_of(on_gpu, "traffic")
    assert (row["nvlink_tx_bytes_per_s"].value, row["pcie_rx_bytes_per_s"].value) == (5e9, 1e9)
    assert len(row) == 3
    (figure,) = on_gpu.figures  # without samples of the GPU over the steps
    assert "1 rank: NVLink sent 5.00 GB/s" in figure.alt


def test_lines_of_several_configurations_have_a_colour_and_dashes_that_the_legend_names() -> None:
    study = study_of(nodes=(1, 4), repeats=1, axes=CONFIGURATIONS)
    for curves, labels in ((study.curves, {"lr 0.001", "lr 0.002"}), (study.curves[:1], set[str]())):
        drawn = section_of(utilization, replace(study, curves=curves)).figures[0].drawn
        styles = {(line.get_color(), line.is_dashed()) for line in drawn.axes[0].lines}
        assert len(styles) == 2 * len(curves) == len(drawn.axes[0].lines)
        assert any(dashed for _, dashed in styles) is (len(curves) > 1)
        texts = {text.get_text() for text in drawn.legends[0].get_texts()}
        assert texts == {"1 rank", "4 ranks"} | labels


@pytest.mark.parametrize(("repeats", "lines"), [(60, 60), (61, 1)])
def test_of_more_than_60_runs_the_first_repeat_of_each_size_has_a_line(repeats: int, lines: int) -> None:
    known = [replace(one_run(), folder=RunDir(Path("s") / f"r{number}")) for number in range(repeats)]
    assert len(lines_of(section_of(utilization, known), "utilization")) == lines


@pytest.mark.parametrize(("nodes", "shown"), [((1, 2, 3, 4, 6, 8), 12), ((1, 2, 3, 4, 6, 8, 12), 4)])
def test_of_too_many_sizes_the_ends_of_each_configuration_have_a_histogram(
    nodes: tuple[int, ...], shown: int
) -> None:
    section = section_of(distributions, study_of(nodes=nodes, repeats=1, axes=CONFIGURATIONS))
    axes = section.figures[0].drawn.axes[0]
    texts = [text.get_text() for text in axes.texts]
    names = [text for text in texts if text and not text.startswith("median")]
    assert len(names) == len(axes.patches) == shown
    assert (names[0], names[-1]) == ("lr 0.001, 1 rank", f"lr 0.002, {nodes[-1]} ranks")
    assert len(rows_of(section)) == 2 * len(nodes)


def test_percentiles_are_means_over_repeats_and_the_slowest_step_is_their_maximum() -> None:
    known, steps = [], (99, 200)
    for run, count, max_s in zip(runs_of(nodes=(1,), repeats=2), steps, (2.0, 1.0), strict=True):
        assert run.metrics is not None
        assert run.metrics.step_time is not None
        times = {"p50_s": 0.1, "p99_s": 0.4, "max_s": max_s}
        of_steps = run.metrics.step_time.model_copy(update=times)
        known.append(changed(run, measured_steps=count, step_time=of_steps))
    section = section_of(distributions, known)
    (row,) = rows_of(section)
    assert (row["max_s"].value, row["steps"]) == (2.0, sum(steps))
    assert (row["p50_s"].value, section.key) == (pytest.approx(0.1), "p99 up to 400 ms")
    assert f"with {min(steps)} steps" in section.conclusion


def test_memory_is_the_highest_of_all_repeats_and_its_size_is_named() -> None:
    known = runs_of(nodes=(1, 2), repeats=2)
    section = section_of(
        memory, [changed(run, peak_memory_bytes=peak) for run, peak in zip(known, (7, 1, 2, 8), strict=True)]
    )
    assert section.conclusion == say("memory", 8, "2 ranks")
    peaks = [(row["peak_bytes"].value, row["mean_peak_bytes"].value) for row in rows_of(section)]
    assert peaks == [(7, 4), (8, 5)]
    assert memory(make_study([changed(run, peak_memory_bytes=None) for run in known])) is None


def test_goodput_divides_all_time_of_the_runs() -> None:
    """Submitted 03:02:05, started 03:03:05, ended 03:04:05."""
    study = study_of(nodes=(2,), repeats=2)
    section = section_of(goodput, study)
    (row,) = rows_of(section)
    share, whole = row.pop("goodput"), row.pop("whole_s")
    assert whole.value == pytest.approx(120)
    assert share.low < share.value < share.high
    assert share.value == pytest.approx(row["training_s"].value / 120)
    assert sum(value.value for name, value in row.items() if name != "size") == pytest.approx(120)
    assert section.conclusion == say("goodput", share.value, 2 * share.value, "queue", 0.5, 2)
    assert goodput(make_study([replace(run, usage=None) for run in study.runs])) is None
    waited, other = study.runs
    at_once = [start.model_copy(update={"submitted": None}) for start in other.usage.starts]
    other = replace(other, usage=other.usage.model_copy(update={"starts": at_once}))
    assert rows_of(section_of(goodput, [waited, other]))[0]["queue_s"].value == pytest.approx(60 / 2)


def test_factors_name_the_smallest_of_several_ranks() -> None:
    (four,) = runs_of(nodes=(4,), repeats=1)
    slow = delayed(four, delays(4, 110, slow=[2], slow_s=0.02), transfer_s=0.001)
    section = section_of(pop, [one_run(), slow])
    base, row = rows_of(section)
    balance = row["persistent_balance"]
    assert section.conclusion == say("smallest_factor", "balance, persistent", balance, "4 ranks")
    assert (base["computation_scaling"], row["transient_balance"].value) == (None, pytest.approx(1))
    assert pop(study_of(nodes=(2, 4))) is None, "records of rank 0 alone"
    assert pop(make_study([one_run()])) is None, "one rank"
    section_of(pop, study_of(nodes=(2,), axes=CONFIGURATIONS, repeats=1, all_ranks=True))  # equal factors


def test_runs_that_do_not_count_are_listed_without_figures() -> None:
    counted, left_out = runs_of(nodes=(1,), repeats=2)
    section = section_of(runs, [counted, replace(left_out, included=False, note="crashed")])
    first, second = rows_of(section)
    assert section.key == "1 of 2 runs in the figures"
    assert [row["samples_per_s"] is None for row in (first, second)] == [False, True]
    assert (second["note"], second["nodes"], round(second["whole_s"])) == ("crashed", 1, 120)


def test_the_longest_overlap_of_a_run_is_listed() -> None:
    ends_s = (120.0, 90.0, 30.0)
    known = [placed(run, ["c1"], 0, end_s) for run, end_s in zip(runs_of(nodes=(1,)), ends_s, strict=True)]
    beside = [row["overlap"] for row in rows_of(section_of(runs, known))]
    assert beside == ["n1x1-r1, 1.50 min on c1", "n1x1-r0, 1.50 min on c1", "n1x1-r0, 30.0 s on c1"]


def test_origins_are_listed_once_and_uncommitted_code_is_named() -> None:
    known = []
    for at, run in enumerate(runs_of(nodes=(1,))):
        assert run.record is not None
        recorded = run.record.provenance
        code = recorded.code.model_copy(update={"git_dirty": at == 1})
        recorded = recorded.model_copy(update={"created": f"2026-01-0{3 - at}", "code": code})
        known.append(replace(run, record=run.record.model_copy(update={"provenance": recorded})))
    origin = provenance(known)
    assert (origin["Device"], origin["Planned"]) == (["cpu"], ["2026-01-01 to 2026-01-03"])
    assert origin["Commit"] == ["f" * 40 + " with uncommitted changes (see run.json)"]


def test_scripts_show_their_own_figures_but_for_communication_benchmarks(tmp_path: Path) -> None:
    measured, *known = runs_of(nodes=(1,))
    figures: Sequence[dict[str, Any]] = ({"a": 1.0}, {"b": 2.0})
    own = [
        replace(run, metrics=None, included=False, reported=each)
        for run, each in zip(known, figures, strict=True)
    ]
    benchmark = replace(own[0], folder=RunDir(tmp_path / "s" / "bench"))
    write_json(benchmark.folder.comm_bench, {})
    own[0] = replace(own[0], attempts=())
    vars(own[1])["hardware"] = {"gpu_utilization": 0.75}
    rows = rows_of(section_of(scripts, [*own, benchmark, measured]))
    assert [row["gpu_utilization"] for row in rows] == [None, 0.75]
    assert [(row["reported.a"], row["reported.b"]) for row in rows] == [(1.0, None), (None, 2.0)]
    assert scripts(make_study([measured, benchmark])) is None


def test_sentences_as_they_were_approved() -> None:
    texts = [
        say("distributions", "1.42x", "4 nodes", 100),
        say("distributions", "1.42x", "4 nodes", 30),
        say("utilization", True, "87 % to 93 %"),
        say("utilization", False, "3.50"),
        say("memory", 3 * 2**30, "4 nodes"),
        say("training", [0.5, 0.25]),
        say("training", [-0.25, 0.1]),
        say("unseen", 9, [Unseen(0.04, 0.02)] * 9),
        say("change", Change(True, -0.1, 0, 200)),
        say("change", Change(False, 0.5, 50, 100)),
    ]
    golden("sections.txt", "\n".join(texts) + "\n")
