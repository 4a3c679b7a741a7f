"""Sections: each concludes, leads to formulas and runs, and vanishes where there is nothing to show."""

from __future__ import annotations

import hashlib
import importlib
import json
import re
from base64 import b64encode
from pathlib import Path

import pytest

from analysis.read.load import load_runs
from analysis.report import render, write
from analysis.report.model import DEFINITIONS, document
from analysis.report.section import Section
from analysis.report.sections import (
    batch_size,
    build_all,
    communication,
    composition,
    scaling,
    training,
    utilization,
)
from analysis.stats.estimates import Estimate
from analysis.study import Study, make_study
from disttrain.records.communication import CommSummary
from disttrain.records.hardware import GpuSummary
from disttrain.records.json_files import read_json, write_json
from disttrain.records.run_directory import RunDir
from tests.support.fake_runs import fake_run, fake_sweep
from tests.support.link_rates import record_rates

PAGE_BYTES = 1_000_000
SCRIPT_BYTES = 15_000


def study_of(*sweeps: Path) -> Study:
    table = load_runs(sweeps)
    return make_study(table)


@pytest.fixture(scope="module")
def default(tmp_path_factory: pytest.TempPathFactory) -> list[Section]:
    """Sections of the report on a sweep of 1, 2 and 4 nodes with three repeats."""
    return build_all(study_of(fake_sweep(tmp_path_factory.mktemp("default"), all_ranks=True)))


def edit_metrics(sweep: Path, **fields: object) -> None:
    for path in sweep.glob("*/metrics.json"):
        write_json(path, read_json(path) | fields)


def gpu_summary(**values: float) -> dict[str, object]:
    """A summary of one GPU that measured these values alone."""
    counts = {"gpus": 1, "gpus_lost": 0, "samples": 9, "sampled_s": 1.0}
    return dict.fromkeys(set(GpuSummary.model_fields) - {"schema_version"}) | counts | values


def test_every_section_has_a_caption_for_each_table_and_at_most_two_figures(default: list[Section]) -> None:
    figures = [figure for section in default for figure in section.figures]
    assert {"stragglers", "goodput", "training_cost"} <= {figure.name for figure in figures}
    tables = [table for section in default for table in section.tables]
    assert max(len(section.figures) for section in default) <= 2
    assert all(figure.alt for figure in figures)
    assert all(table.caption for table in tables)
    assert len({figure.name for figure in figures}) == len(figures)
    assert len({table.name for table in tables}) == len(tables)
    assert len({section.id for section in default}) == len(default)


def test_sections_are_found_by_their_file_and_ordered(default: list[Section]) -> None:
    places = [
        importlib.import_module(f"analysis.report.sections.{each.id.replace('-', '_')}").ORDER
        for each in default
    ]
    assert places == sorted(places)
    assert len(places) > 10


def test_columns_with_a_unit_lead_to_definitions_that_exist(default: list[Section]) -> None:
    named = {c.formula_id for s in default for t in s.tables for c in t.columns if c.formula_id}
    assert named <= {each["id"] for each in DEFINITIONS}
    assert {"throughput", "efficiency", "phases", "percentiles"} <= named


def test_nothing_finished_leaves_only_the_runs_and_their_origin(tmp_path: Path) -> None:
    fake_run(tmp_path / "s" / "n1", end="planned")
    assert {section.id for section in build_all(study_of(tmp_path / "s"))} <= {"runs", "reproduction"}


def test_communication_of_one_rank_is_no_section(tmp_path: Path) -> None:
    assert communication.build(study_of(fake_sweep(tmp_path, nodes=(1,)))) is None
    found = communication.build(study_of(fake_sweep(tmp_path, "several", nodes=(1, 2))))
    assert found is not None
    assert found.conclusion.startswith("On 2 ranks, exposed communication takes 15.0 % ")


def test_bus_bandwidth_stands_beside_the_rate_that_the_run_measured(tmp_path: Path) -> None:
    sweep = fake_sweep(tmp_path, nodes=(1, 2, 4), repeats=2)
    comm = CommSummary(
        method="profiler",
        sampled_steps=1,
        count=1,
        bytes=8,
        total_s=0.02,
        hidden_s=0.01,
        exposed_s=0.01,
        compute_s=0.05,
        bus_bytes_per_s=60e6,
        collectives=[],
    ).model_dump(mode="json")
    edit_metrics(sweep, comm=comm)
    for number, run in enumerate(sorted(sweep.glob("n4*"))):
        record_rates(RunDir(run).attempt(0), {(0, 1): 1e9, (1, 0): (80e6, 120e6)[number]})
    section = communication.build(study_of(sweep))
    assert section is not None
    names = [column.name for column in section.tables[0].columns]
    two, four = (row[names.index("measured_share")] for row in section.tables[0].rows)
    assert two is None
    assert isinstance(four, Estimate)
    assert (four.value, four.repeats) == (pytest.approx(60 / ((80 + 120) / 2)), 2)


def test_batch_sizes_are_compared_within_a_configuration(tmp_path: Path) -> None:
    """Twice the batch gives ddp 1.5 times and fsdp 1.7 times its throughput."""
    weak = fake_sweep(tmp_path, "weak", nodes=(1, 2), scaling="strong")
    assert batch_size.build(study_of(weak)) is None
    for strategy, batch, mean_s in (
        ("ddp", 8, 0.1), ("ddp", 16, 0.2 / 1.5), ("fsdp", 8, 0.3), ("fsdp", 16, 0.6 / 1.7),
    ):  # fmt: skip
        fake_run(
            tmp_path / "batch" / f"{strategy}-b{batch}",
            nodes=2,
            local_batch_size=batch,
            mean_s=mean_s,
            axes={"resources.nodes": 2, "parallel.strategy": strategy, "train.local_batch_size": batch},
        )
    found = batch_size.build(study_of(tmp_path / "batch"))
    assert found is not None
    ratios = {(row[0].split(",")[0], row[-5]): row[-1] for row in found.tables[0].rows}
    assert ratios["strategy ddp", 8] is None
    assert ratios["strategy ddp", 16].value == pytest.approx(1.5)
    assert ratios["strategy fsdp", 16].value == pytest.approx(1.7)
    assert "On strategy ddp, 2 ranks, 2 times the batch" in found.conclusion
    (figure,) = found.figures
    joined = [list(line.get_xdata()) for line in figure.drawn.axes[0].lines if len(line.get_xdata()) > 1]
    assert joined == [[8, 16], [8, 16]]


def test_skipped_steps_are_counted(tmp_path: Path) -> None:
    sweep = fake_sweep(tmp_path, nodes=(1,), repeats=1, skipped_steps=3)
    found = training.build(study_of(sweep))
    assert found is not None
    finite = training.build(study_of(fake_sweep(tmp_path, "finite", nodes=(1,), repeats=1)))
    assert finite is not None
    assert (found.tables[0].columns[2].name, found.tables[0].rows[0][2]) == ("skipped_steps", 3)
    assert "skipped_steps" not in [column.name for column in finite.tables[0].columns]


def test_traffic_of_gpus_has_a_table_and_bars(tmp_path: Path) -> None:
    sweep = fake_sweep(tmp_path, nodes=(1, 2), repeats=1)
    edit_metrics(sweep, gpu=gpu_summary(nvlink_tx_bytes_per_s=5e9, pcie_rx_bytes_per_s=1e9))
    found = utilization.build(study_of(sweep))
    assert found is not None
    (table,) = [table for table in found.tables if table.name == "traffic"]
    assert [column.heading for column in table.columns[1:]] == ["NVLink sent", "PCIe received"]
    (figure,) = [figure for figure in found.figures if figure.name == "traffic"]
    assert "1 rank: NVLink sent 5.00 GB/s" in figure.alt


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """The page of 60 runs in 6 configurations, and the folder of the sweep."""
    root = tmp_path_factory.mktemp("many")
    axes = [{"optim.lr": lr / 1000} for lr in range(1, 7)]
    sweep = fake_sweep(root, nodes=(1, 2, 4, 8, 16), repeats=2, axes=axes, emulated=True)
    study = study_of(sweep)
    sections: list[Section] = build_all(study)
    report = document(study, sections, "2026-01-02T03:04:05Z")
    return render.page(report, sections, sweep / "report"), sweep


def test_a_page_of_many_runs_stays_below_a_megabyte(many: tuple[str, Path]) -> None:
    assert len(many[0].encode()) < PAGE_BYTES


def test_emulated_results_are_marked_at_each_figure_and_table(many: tuple[str, Path]) -> None:
    page, _ = many
    marks = page.count('class="tag">emulated')
    marked = ("<figcaption>", "<caption>")
    assert marks == sum(map(page.count, marked)) > 10
    assert "(emulated)</title>" in page


def test_the_policy_allows_this_style_and_script_and_nothing_else(many: tuple[str, Path]) -> None:
    page, _ = many
    (policy,) = re.findall(r'Content-Security-Policy" content="([^"]*)"', page)
    for kind in ("style", "script"):
        (content,) = re.findall(f"<{kind}>(.*?)</{kind}>", page, re.S)
        digest = b64encode(hashlib.sha256(content.encode()).digest()).decode()
        assert f"{kind}-src &#39;sha256-{digest}&#39;" in policy
    assert policy.startswith("default-src &#39;none&#39;")
    assert "unsafe" not in policy
    (script,) = re.findall("<script>(.*?)</script>", page, re.S)
    assert len(script) < SCRIPT_BYTES
    assert not re.search(r"eval|Function\(|fetch|XMLHttpRequest|import\(", script)
    assert not re.search(r'<[^>]+ (?:style|on\w+)="', page)


def test_the_page_has_landmarks_and_described_figures(many: tuple[str, Path]) -> None:
    page, _ = many
    for tag in ("<header>", '<main id="main">', "<footer>"):
        assert page.count(tag) == 1
    svgs = re.findall(r"<svg[^>]*>", page)
    assert svgs
    assert all('role="img"' in svg and "aria-label=" in svg for svg in svgs)
    assert re.findall(r"<(h\d)", page)[0] == "h1"
    assert set(re.findall(r"<(h\d)", page)[1:]) == {"h2"}
    assert page.count("<caption>") == page.count("<table")
    assert not re.search(r"<th(?! scope=)", page.replace("<thead", ""))
    links = re.findall(r'<a href="[^"]*"( title="[^"]*" aria-label="\d+: run [^"]*")?>\d+</a>', page)
    assert links
    assert all(links)  # a screen reader names the run behind each number
    ids = re.findall(r' id="([^"]+)"', page)
    assert len(ids) == len(set(ids))


def test_cells_carry_their_heading_for_narrow_screens(many: tuple[str, Path]) -> None:
    page, _ = many
    for table in re.findall(r"<table.*?</table>", page, re.DOTALL):
        heads = re.findall(r"<th scope=\"col\"[^>]*>(?:<a[^>]*>)?([^<]*)<", table)
        assert ('class="stack"' in table) == (len(heads) > 3)
        body = re.findall(r'data-h="([^"]*)"', table)
        assert body == heads * (len(body) // len(heads))


MEANS = (
    "composition", "communication", "collectives", "memory", "utilization", "goodput",
    "step_percentiles", "pop_factors",
)  # fmt: skip


@pytest.mark.parametrize("repeats", [3, 1])
def test_means_have_their_interval_and_number_of_repeats(
    tmp_path: Path, default: list[Section], repeats: int
) -> None:
    if repeats == 3:
        sections = default
    else:
        sections = build_all(study_of(fake_sweep(tmp_path, repeats=repeats, all_ranks=True)))
    found = [table for section in sections for table in section.tables if table.name in MEANS]
    absent = {"collectives", "utilization"}
    assert {table.name for table in found} == set(MEANS) - absent
    for table in found:
        means = [value for row in table.rows for value in row if not isinstance(value, str | int | None)]
        assert means
        for mean in means:
            assert isinstance(mean, Estimate)
            assert mean.repeats == repeats
            assert (mean.low is not None) == (repeats > 1 and mean.basis != "maximum")


def test_the_phases_of_a_row_sum_to_its_step(tmp_path: Path) -> None:
    section = composition.build(study_of(fake_sweep(tmp_path)))
    assert section is not None
    for _, step_s, *phases in section.tables[0].rows:
        assert sum(phase.value for phase in phases if phase is not None) == pytest.approx(step_s.value)
        assert all(phase.low <= phase.value <= phase.high for phase in phases if phase is not None)


@pytest.mark.usefixtures("empty_pngs")
def test_tables_in_json_have_raw_values_with_interval_and_repeats(tmp_path: Path) -> None:
    write([fake_sweep(tmp_path, nodes=(1, 2))], tmp_path / "out")
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    (scaling,) = [t for s in report["sections"] for t in s["tables"] if t["name"] == "scaling"]
    names = [column["name"] for column in scaling["columns"]]
    efficiency = scaling["rows"][1][names.index("efficiency")]
    assert set(efficiency) == {"value", "low", "high", "repeats", "basis"}
    assert 0 < efficiency["low"] < efficiency["value"] < efficiency["high"] < 1
    assert scaling["sources"][1] == ["n2x1-r0", "n2x1-r1", "n2x1-r2"]


def test_scaling_marks_the_first_full_node_and_other_shapes_of_a_size(tmp_path: Path) -> None:
    for nodes, gpus in ((1, 4), (1, 8), (2, 4), (2, 8)):
        fake_run(
            tmp_path / "s" / f"n{nodes}-g{gpus}",
            nodes=nodes,
            gpus_per_node=gpus,
            axes={"resources.nodes": nodes, "resources.gpus_per_node": gpus},
            overrides={"device": "NVIDIA H100"},
        )
    section = scaling.build(study_of(tmp_path / "s"))
    assert section is not None
    axes = section.figures[0].drawn.axes[0]
    assert [8, 8] in [list(line.get_xdata()) for line in axes.lines]
    assert [4, 8, 16] in [list(line.get_xdata()) for line in axes.lines]
    assert [row[:2] for row in section.tables[0].rows] == [[4, "1x4"], [8, "2x4"], [8, "1x8"], [16, "2x8"]]


def test_details_of_scaling_have_what_publications_print(tmp_path: Path) -> None:
    gpu = gpu_summary(utilization=0.5)
    sweep = fake_sweep(tmp_path, nodes=(1, 2), device="NVIDIA H100", gpu=gpu)
    section = scaling.build(study_of(sweep))
    assert section is not None
    opened, details = section.tables
    assert [column.heading for column in opened.columns][:2] == ["GPUs", "shape"]
    assert len(opened.columns) < 8  # one more links to the runs
    names = [column.name for column in details.columns]
    assert "messages" not in names  # no run profiled a step
    row = dict(zip(names, details.rows[1], strict=True))
    rates = [row[name] for name in ("samples_per_s_each", "communication_share", "gpu_utilization")]
    assert [rate.value for rate in rates] == pytest.approx([68, 0.15, 0.5], rel=0.01)
    lines = section.figures[1].drawn.axes[0].lines
    assert [0.5] in [list(line.get_ydata()) for line in lines], "utilization beside efficiency"
    assert row["tokens_per_s"] == pytest.approx(128 * 2 * row["samples_per_s_each"].value)
    assert (row["ideal"], row["peak_memory_bytes"]) == (pytest.approx(2), 302 * 2**20)
    assert not {"speedup", "efficiency"} & row.keys(), "columns of the opened table"


def test_communication_over_steps_and_the_size_from_which_it_is_longest(tmp_path: Path) -> None:
    history = [{"step": step, "ratio": step / 100} for step in (11, 50, 110)]
    sweep = fake_sweep(tmp_path, nodes=(1, 8, 16), repeats=1, communication_computation_history=history)
    section = communication.build(study_of(sweep))
    assert section is not None
    assert section.paragraphs == [
        "From 16 ranks on, exposed communication takes longer than any other phase."
    ]
    axes = section.figures[1].drawn.axes[0]
    assert [list(line.get_ydata()) for line in axes.lines] == [[0.11, 0.5, 1.1]] * 3
    small = communication.build(study_of(fake_sweep(tmp_path, "small", nodes=(1, 2), repeats=1)))
    assert small is not None
    assert (small.paragraphs, len(small.figures)) == ([], 1)


def test_accuracy_over_steps_stands_beside_the_loss(tmp_path: Path) -> None:
    history = [
        {"step": step, "loss": 1.0, "metrics": {"accuracy": accuracy}, "samples": 9, "elapsed_s": 0.1}
        for step, accuracy in ((50, 0.25), (110, 0.75))
    ]
    for nodes, gpus, skipped in ((1, 4, 1), (2, 2, 2)):
        fake_run(
            tmp_path / "s" / f"n{nodes}",
            nodes=nodes,
            gpus_per_node=gpus,
            axes={"resources.nodes": nodes, "resources.gpus_per_node": gpus},
            overrides={"eval_history": history, "skipped_steps": skipped},
        )
    section = training.build(study_of(tmp_path / "s"))
    assert section is not None
    lines = section.figures[1].drawn.axes[0].lines
    assert [list(line.get_ydata()) for line in lines] == [[0.25, 0.75]] * 2
    rows = {row[1]: row[3] for row in section.tables[0].rows}
    assert rows == {"2x2": 2, "1x4": 1}, "shapes of one size are told apart"


@pytest.mark.parametrize(
    ("key", "values"),
    [("parallel.strategy", ("ddp", "fsdp")), ("precision.dtype", ("fp32", "bf16"))],
)
def test_swept_options_have_memory_and_speed_up(tmp_path: Path, key: str, values: tuple[str, str]) -> None:
    sweep = fake_sweep(tmp_path, nodes=(2,), axes=[{key: value} for value in values])
    section = scaling.build(study_of(sweep))
    assert section is not None
    table = section.tables[1]
    names = [column.name for column in table.columns]
    assert f"speed-up over {values[0]}" in [column.heading for column in table.columns]
    rows = {row[0].split()[1]: dict(zip(names, row, strict=True)) for row in table.rows}
    base, other = (rows[value] for value in values)
    speedup = f"{key.partition('.')[2]}_speedup"
    assert base[speedup] is None
    assert other[speedup].value == pytest.approx(1 / 1.1, rel=0.01)
    assert other["peak_memory_bytes"] == 302 * 2**20
