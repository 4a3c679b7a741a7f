"""Percentiles and histograms of any number of sizes, and lines that name the size beside the curve."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from analysis.read.load import load_runs
from analysis.report.section import Figure
from analysis.report.sections import distributions, utilization
from analysis.study import Study, make_study
from tests.support.fake_runs import fake_sweep

CONFIGURATIONS = [{"optim.lr": lr / 1000} for lr in (1, 2)]


def study_of(sweep: Path) -> Study:
    table = load_runs([sweep])
    return make_study(table)


def rows_of(figure: Figure) -> list[str]:
    """Names of the histograms, from the top."""
    texts = [text.get_text() for text in figure.drawn.axes[0].texts]
    return [text for text in texts if text and not text.startswith("median")]


@pytest.mark.parametrize(
    ("nodes", "shown"),
    [
        ((1, 2, 3, 4, 6, 8), 12),
        ((1, 2, 3, 4, 6, 8, 12), 4),
    ],
)
def test_of_too_many_sizes_the_ends_of_each_configuration_have_a_histogram(
    tmp_path: Path, nodes: tuple[int, ...], shown: int
) -> None:
    study = study_of(fake_sweep(tmp_path, nodes=nodes, repeats=1, axes=CONFIGURATIONS))
    section = distributions.build(study)
    assert section is not None
    (figure,) = section.figures
    rows = rows_of(figure)
    assert len(rows) == len(figure.drawn.axes[0].patches) == shown
    assert (rows[0], rows[-1]) == ("lr 0.001, 1 rank", f"lr 0.002, {nodes[-1]} ranks")
    assert len(section.tables[0].rows) == 2 * len(nodes)


def test_lines_of_several_configurations_have_a_colour_and_dashes_that_the_legend_names(
    tmp_path: Path,
) -> None:
    study = study_of(fake_sweep(tmp_path, nodes=(1, 4), repeats=1, axes=CONFIGURATIONS))
    section = utilization.build(study)
    assert section is not None
    drawn = section.figures[0].drawn
    styles = [(line.get_color(), line.is_dashed()) for line in drawn.axes[0].lines]
    assert len(set(styles)) == len(styles) == 4
    assert {text.get_text() for text in drawn.legends[0].get_texts()} == {
        "1 rank",
        "4 ranks",
        "lr 0.001",
        "lr 0.002",
    }
    alone = replace(study, curves=study.curves[:1])
    section = utilization.build(alone)
    assert section is not None
    drawn = section.figures[0].drawn
    assert not any(line.is_dashed() for line in drawn.axes[0].lines)
