"""The first screen: its answers, from the sections below."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from analysis.read.load import load_runs
from analysis.report import first_screen, render
from analysis.report.model import document
from analysis.report.section import Section
from analysis.report.sections import build_all, composition, scaling
from analysis.study import Study, make_study
from disttrain.records.json_files import read_json, write_json
from tests.support.fake_runs import fake_run, fake_sweep

NAMED = [
    Section("stragglers", "Stragglers", "Node c07 is slow by 4.6 %. Others are not."),
    Section("bottlenecks", "Bottlenecks", "At most 5 % more throughput without waiting."),
]


def study_of(sweep: Path) -> Study:
    table = load_runs([sweep])
    return make_study(table)


def test_answers_with_interval_culprit_and_ceiling(tmp_path: Path) -> None:
    study = study_of(fake_sweep(tmp_path))
    scales, time, slow, helps = first_screen.answers(study, [*build_all(study), *NAMED]).values()
    assert scales.startswith("Efficiency [69, 74] % from 3 repeats each.")
    assert time.startswith("At 4 ranks, the largest loss is data transfer: 29.1 ms a step beyond ")
    assert "c07" not in time + slow  # of another configuration than this sweep's
    assert helps == "At most 5 % more throughput without waiting."
    assert first_screen.caveats(study)[-1]["text"] == "Nothing was measured beyond 4 ranks."


def test_nothing_significant_promises_nothing(tmp_path: Path) -> None:
    study = study_of(fake_sweep(tmp_path))
    found = first_screen.answers(study, [composition.build(study)])
    assert found[first_screen.TIME] == "On 4 ranks, the longest phase is compute: 62 % of the step."
    assert [*found] == [first_screen.SCALES, first_screen.TIME, first_screen.SLOW]


def answer(sweep: Path, question: str) -> str:
    return first_screen.answers(study_of(sweep), [])[question]


def test_ranks_without_step_records_are_the_reason_why_none_is_slow(tmp_path: Path) -> None:
    missing = answer(fake_sweep(tmp_path), first_screen.SLOW)
    assert missing == "On 4 ranks: cannot tell, ranks 1, 2, 3 of 4 recorded 0 of 100 measured steps."
    stages = answer(fake_sweep(tmp_path, "stages", strategy="pipeline"), first_screen.SLOW)
    assert stages == "On 4 ranks: cannot tell, stages of a pipeline have different work."
    alone = study_of(fake_sweep(tmp_path, "alone", nodes=[1]))
    assert first_screen.SLOW not in first_screen.answers(alone, [])


def test_the_leading_curve_is_searched_for_stragglers_before_the_limit_of_runs(tmp_path: Path) -> None:
    axes = [{"optim.lr": 0.002}, {"optim.lr": 0.001}]  # lr 0.002, the last curve, is a tenth faster
    sweep = fake_sweep(tmp_path, nodes=(1, 2), repeats=5, axes=axes, all_ranks=True)
    study = study_of(sweep)
    assert study.leading_curve is study.curves[-1]
    assert len(study.stragglers) == 8
    assert [len(study.diagnoses(curve.points[-1])) for curve in study.curves] == [3, 5]
    slow = first_screen.answers(study, [])[first_screen.SLOW]
    assert slow.startswith("On lr 0.002, 2 ranks: no rank or node is slow; ")


def test_the_fastest_of_several_configurations_leads(tmp_path: Path) -> None:
    sweep = fake_sweep(tmp_path, axes=[{"optim.lr": 0.001}, {"optim.lr": 0.002}])
    study = study_of(sweep)
    assert study.leading_curve.label == "lr 0.001"  # each group is slower than the one before
    assert first_screen.lead(study).startswith(
        "4 ranks run 2.9\N{MULTIPLICATION SIGN} as fast as 1 (lr 0.001) ["
    )
    first = first_screen.answers(study, [])[first_screen.SCALES]
    assert "lr 0.001 is faster than lr 0.002 at 4 ranks: 1.10" in first
    assert first.endswith("The fastest of 2 configurations.")
    alone = study_of(
        fake_sweep(tmp_path, "alone", axes=[{"optim.lr": 0.001}, {"optim.lr": 0.002}], repeats=1)
    )
    text = first_screen.answers(alone, [])[first_screen.SCALES]
    assert "fastest" not in text
    assert text.endswith(", one repeat.")
    assert first_screen.caveats(alone)[-1]["text"].endswith("; two values do not locate the best lr.")
    assert "(no interval, n=1)" in first_screen.answers(alone, build_all(alone))[first_screen.TIME]


def test_a_configuration_with_a_larger_size_can_be_faster_at_the_size_of_the_leading_one(
    tmp_path: Path,
) -> None:
    slow, fast = {"optim.lr": 0.002}, {"optim.lr": 0.001}
    for repeat, noise in enumerate((0.99, 1.0, 1.01)):
        fake_run(
            tmp_path / "s" / f"slow-n1-{repeat}",
            repeat=repeat,
            axes=slow | {"resources.nodes": 1},
            mean_s=0.2 * noise,
        )
        fake_run(
            tmp_path / "s" / f"fast-n1-{repeat}",
            repeat=repeat,
            axes=fast | {"resources.nodes": 1},
            mean_s=0.1 * noise,
        )
        fake_run(
            tmp_path / "s" / f"fast-n2-{repeat}",
            nodes=2,
            repeat=repeat,
            axes=fast | {"resources.nodes": 2},
            mean_s=0.9 * noise,
        )
    study = study_of(tmp_path / "s")
    assert study.leading_curve.label == "lr 0.002"
    text = first_screen.answers(study, [])[first_screen.SCALES]
    assert "lr 0.002 is slower than lr 0.001 at 1 rank: 0.50" in text


def test_the_setting_has_model_batch_and_steps(tmp_path: Path) -> None:
    setting = first_screen.setting(study_of(fake_sweep(tmp_path, repeats=1, parameters=4_206_592)))
    assert setting == "4.21 M parameters · 8 to 32 samples a step · 110 steps"


def test_a_larger_size_than_that_of_the_others_is_not_the_fastest(tmp_path: Path) -> None:
    fake_sweep(tmp_path, nodes=(1, 2), axes=[{"optim.lr": 0.001}])
    study = study_of(fake_sweep(tmp_path, nodes=(2, 4), axes=[{"optim.lr": 0.002}]))
    text = f"{first_screen.lead(study)}: {first_screen.answers(study, [])[first_screen.SCALES]}"
    assert text.startswith("4 ranks run 1.7\N{MULTIPLICATION SIGN} as fast as 2 (lr 0.002) [")
    assert "fastest" not in text
    section = scaling.build(study)
    assert section is not None
    assert "The bases have different sizes" in section.tables[0].caption


def test_nothing_finished_has_no_answer(tmp_path: Path) -> None:
    fake_run(tmp_path / "s" / "n1", end="planned")
    study = study_of(tmp_path / "s")
    assert first_screen.answers(study, NAMED) == {}
    assert first_screen.lead(study) == "No measured run: 1 planned"


class Prose(HTMLParser):
    """Counts words outside of tables and figures: those of a page as it opens, and all."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.unfolded = self.all = 0
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in {"meta", "img", "br", "hr", "link"}:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        self.open.pop()

    def handle_data(self, data: str) -> None:
        if {"table", "svg", "style", "script"}.isdisjoint(self.open):
            folded = self.open.count("details") > ("summary" in self.open)
            self.unfolded += 0 if folded else len(data.split())
            self.all += len(data.split())


@pytest.mark.parametrize("changes", [{}, {"repeats": 1}, {"axes": [{"optim.lr": 1e-3}, {"optim.lr": 2e-3}]}])
def test_the_page_is_short_and_opens_shorter(tmp_path: Path, changes: dict[str, Any]) -> None:
    study = study_of(fake_sweep(tmp_path, all_ranks=True, **changes))
    sections = build_all(study)
    report = document(study, sections, "2026-01-02T03:04:05Z")
    page = render.page(report, sections)
    prose = Prose(page)
    assert 150 < prose.unfolded <= 500
    assert prose.all <= 2500
    assert max(len(answer["text"].split()) for answer in report["answers"]) <= 45


def test_without_a_headline_no_efficiency_is_stated(tmp_path: Path) -> None:
    sweep = fake_sweep(tmp_path, all_ranks=True)
    for path in sweep.glob("n4*/run.json"):
        record = read_json(path)
        record["config"]["resources"]["threads_per_rank"] = 2
        write_json(path, record)
    study = study_of(sweep)
    assert study.forbidden("headline")
    sections = build_all(study)
    texts = [*first_screen.answers(study, sections).values()]
    texts += [text for section in sections for text in (section.conclusion, section.key)]
    assert not [text for text in texts if re.search(r"fficiency (is|lies|\[|\d)|beyond the prediction", text)]
