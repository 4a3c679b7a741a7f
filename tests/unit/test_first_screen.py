"""The first screen: up to three answers, from the sections below."""

from __future__ import annotations

from pathlib import Path

from analysis.efficiency import scaling_curves
from analysis.report import first_screen
from analysis.report.section import Section
from analysis.report.sections import scaling
from analysis.runs.load import load
from analysis.study import Study
from tests.support.fake_runs import fake_run, fake_sweep

NAMED = [
    Section("stragglers", "Stragglers", "Node c07 is slow by 4.6 %. Others are not."),
    Section("bottlenecks", "Bottlenecks", "At most 5 % more throughput without waiting."),
]


def study_of(sweep: Path) -> Study:
    table = load([sweep])
    return Study(table, scaling_curves(table))


def test_three_answers_with_interval_culprit_and_ceiling(tmp_path: Path) -> None:
    scales, time, helps = first_screen.answers(study_of(fake_sweep(tmp_path)), NAMED)
    assert scales.text.startswith(
        "4 nodes run 2.9\N{MULTIPLICATION SIGN} as fast as 1: 72 % efficiency. 95 %"
    )
    assert time.text.startswith("Data transfer loses most at 4 nodes: 20.8 % [")
    assert "c07" not in time.text  # of another configuration than this sweep's
    assert helps.text == "At most 5 % more throughput without waiting."


def test_nothing_significant_promises_nothing(tmp_path: Path) -> None:
    found = first_screen.answers(study_of(fake_sweep(tmp_path)), [])
    assert [each.question for each in found] == [first_screen.SCALES, first_screen.TIME]


def test_the_fastest_of_several_configurations_leads(tmp_path: Path) -> None:
    sweep = fake_sweep(tmp_path, axes=[{"optim.lr": 0.001}, {"optim.lr": 0.002}])
    study = study_of(sweep)
    assert first_screen.leading_curve(study).label == "lr 0.001"  # each group is slower than the one before
    assert first_screen.lead(study).startswith(
        "4 nodes run 2.9\N{MULTIPLICATION SIGN} as fast as 1 (lr 0.001):"
    )
    assert first_screen.answers(study, [])[0].text.endswith("The fastest of 2 configurations.")
    alone = study_of(
        fake_sweep(tmp_path, "alone", axes=[{"optim.lr": 0.001}, {"optim.lr": 0.002}], repeats=1)
    )
    assert "fastest" not in first_screen.answers(alone, [])[0].text
    assert "(one repeat)" in first_screen.answers(alone, [])[1].text


def test_a_larger_size_than_that_of_the_others_is_not_the_fastest(tmp_path: Path) -> None:
    fake_sweep(tmp_path, nodes=(1, 2), axes=[{"optim.lr": 0.001}])
    study = study_of(fake_sweep(tmp_path, nodes=(2, 4), axes=[{"optim.lr": 0.002}]))
    text = first_screen.answers(study, [])[0].text
    assert text.startswith("4 nodes run 1.7\N{MULTIPLICATION SIGN} as fast as 2 (lr 0.002):")
    assert "fastest" not in text
    section = scaling.build(study)
    assert section is not None
    assert "The bases have different sizes" in section.tables[0].caption


def test_strong_scaling_names_the_ideal_part_of_the_base(tmp_path: Path) -> None:
    sweep = fake_sweep(tmp_path, nodes=(1, 2), scaling="strong", efficiency=0.7)
    text = first_screen.answers(study_of(sweep), [])[1].text
    assert " more than half of the time on 1 node (" in text


def test_nothing_finished_has_no_answer(tmp_path: Path) -> None:
    fake_run(tmp_path / "s" / "n1", end="planned")
    study = study_of(tmp_path / "s")
    assert first_screen.answers(study, NAMED) == []
    assert first_screen.lead(study) == first_screen.NOTHING
