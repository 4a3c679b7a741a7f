"""Histograms of any number of sizes, and lines whose labels name the size in the colour of the line."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from analysis.efficiency import scaling_curves
from analysis.read.frames import load
from analysis.report import render
from analysis.report.section import Figure
from analysis.report.sections import build_all, distributions, utilization
from analysis.report.summary import summarize
from analysis.study import Study
from disttrain.records.run_directory import RunDir
from tests.support.fake_runs import fake_sweep

CONFIGURATIONS = [{"optim.lr": lr / 1000} for lr in (1, 2)]


def study_of(sweep: Path) -> Study:
    table = load([sweep])
    return Study(table, scaling_curves(table))


def histograms_of(study: Study) -> Figure:
    section = distributions.build(study)
    assert section is not None
    return next(figure for figure in section.figures if figure.name == "latency")


def test_eight_sizes_have_their_histograms_in_two_columns(tmp_path: Path) -> None:
    study = study_of(fake_sweep(tmp_path, nodes=(1, 2, 3, 4, 6, 8, 12, 16), repeats=1))
    figure = histograms_of(study)
    columns = figure.svg.split("<svg ")[1:]
    assert [column.count("median ") for column in columns] == [4, 4]
    assert figure.draw_png is not None
    assert len(figure.draw_png().axes) == 8
    sections = build_all(study)
    page = render.page(summarize(study, sections, "2026-01-02T03:04:05Z"), sections)
    assert '<figure id="fig-latency" class="wide">' in page
    assert len(page.encode()) < render.PAGE_BYTES


def test_few_sizes_stay_in_one_column(tmp_path: Path) -> None:
    figure = histograms_of(study_of(fake_sweep(tmp_path, nodes=(1, 2), repeats=1)))
    assert (figure.columns, figure.svg.count("median ")) == (1, 2)


def test_of_too_many_sizes_the_ends_of_each_configuration_are_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(distributions, "_MOST_HISTOGRAMS", 4)
    sweep = fake_sweep(tmp_path, nodes=(1, 2, 4), repeats=1, axes=CONFIGURATIONS)
    figure = histograms_of(study_of(sweep))
    shown = re.findall(r">lr [\d.]+, (\d) nodes?</text>", figure.svg)
    assert shown == ["1", "4", "1", "4"]
    assert "Of 6 sizes, 4 are shown: the smallest and largest of each configuration." in figure.caption
    assert figure.draw_png is not None
    assert len(figure.draw_png().axes) == 4


def test_configurations_beyond_the_most_histograms_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(distributions, "_MOST_HISTOGRAMS", 3)
    figure = histograms_of(study_of(fake_sweep(tmp_path, nodes=(1, 2), repeats=1, axes=CONFIGURATIONS)))
    assert figure.svg.count("median ") == 2
    text = "Of 4 sizes, 2 are shown: the smallest and largest of the first 1 of 2 configurations."
    assert text in figure.caption


def test_of_equal_shares_of_slow_steps_none_is_the_largest(tmp_path: Path) -> None:
    sweep = fake_sweep(tmp_path, nodes=(1, 2), repeats=1)
    figure = histograms_of(study_of(sweep))
    assert figure.conclusion == ("2 of 100 steps take more than 1.25 times the median at each of 2 sizes.")
    path = RunDir(sweep / "n2x1-r0").attempt(0).steps(0)
    records = [json.loads(line) for line in path.read_text().splitlines()]
    records[-1]["step_s"] *= 2
    path.write_text("".join(f"{json.dumps(record)}\n" for record in records))
    found = histograms_of(study_of(sweep)).conclusion
    assert found == (
        "3 of 100 steps take more than 1.25 times the median on 2 nodes, the largest such share."
    )


def test_lines_of_several_configurations_have_a_colour_and_dashes_that_the_legend_names(
    tmp_path: Path,
) -> None:
    study = study_of(fake_sweep(tmp_path, nodes=(1, 4), repeats=1, axes=CONFIGURATIONS))
    for module, name in ((distributions, "ecdf"), (utilization, "utilization")):
        section = module.build(study)
        assert section is not None
        svg = next(figure.svg for figure in section.figures if figure.name == name)
        lines = re.findall(r'class="stroke (c\d)"(?: stroke-dasharray="([\d ]+)")?><title>', svg)
        assert sorted(lines) == [("c0", ""), ("c0", "6 4"), ("c1", ""), ("c1", "6 4")]
        swatches = r'class="stroke ink"(?: stroke-dasharray="([\d ]+)")?/><text[^>]*>([^<]*)</text>'
        assert re.findall(swatches, svg) == [("", "1 node"), ("6 4", "4 nodes")]
    alone = replace(study, recorded_curves=study.curves[:1])
    section = utilization.build(alone)
    assert section is not None
    assert "dasharray" not in section.figures[0].svg
    assert "stroke ink" not in section.figures[0].svg
