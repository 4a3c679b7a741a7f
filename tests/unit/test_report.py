"""The report: the same numbers three times, nothing unescaped, nothing from the network."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from analysis.read.load import load_runs
from analysis.report import render, write
from analysis.report.model import document
from analysis.report.section import Section
from analysis.report.sections import build_all
from analysis.report.sentences import say
from analysis.results.curves import scaling_curves
from analysis.stats.estimates import Estimate
from analysis.study import Study, make_study
from disttrain.errors import ConfigError
from disttrain.records.steps import PHASES
from tests.support.fake_runs import fake_run, fake_sweep

GOLDEN = Path(__file__).parents[1] / "golden"
SCRIPT = '<script>alert("x")</script>'


class Page(HTMLParser):
    """Checks that tags nest, and collects tags, attributes and text."""

    VOID = frozenset({"meta", "img", "br", "hr", "link"})

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.text = ""
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


PNGS = {
    f"{name}.png"
    for name in (
        "scaling",
        "efficiency",
        "waterfall",
        "composition",
        "communication",
        "latency",
        "memory",
        "utilization",
        "training",
        "gradient_norm",
        "goodput",
        "training_cost",
    )
}


WHEN = "2026-01-02T03:04:05Z"


class Made:
    """A report and its texts, without PNG files: quick."""

    def __init__(self, sweeps: Sequence[Path], base: str | None = None) -> None:
        study = study_of(sweeps, base)
        self.sections: list[Section] = build_all(study)
        self.report = document(study, self.sections, WHEN)

    @property
    def markdown(self) -> str:
        return render.markdown(self.report, self.sections)

    @property
    def page(self) -> str:
        return render.page(self.report, self.sections)


def study_of(sweeps: Sequence[Path], base: str | None = None) -> Study:
    table = load_runs(sweeps)
    return make_study(table, base)


def report_of(sweeps: Sequence[Path]) -> dict[str, Any]:
    """The report without its sections, which take most of the time."""
    return document(study_of(sweeps), [], WHEN)


def test_markdown_as_it_was_approved(tmp_path: Path) -> None:
    sweep = fake_sweep(tmp_path, all_ranks=True)
    fake_run(sweep / "n4x1-r3", nodes=4, repeat=3, end="failed", message="rank 2: RuntimeError: a | b")
    fake_run(sweep / "n8x1-r0", nodes=8, end="planned")
    text = Made([sweep]).markdown
    golden = GOLDEN / "report.md"
    if os.environ.get("UPDATE_GOLDEN"):
        golden.write_text(text)
    assert text == golden.read_text()


def test_the_files_agree_and_stand_alone(tmp_path: Path) -> None:
    out = tmp_path / "out"
    page = write([fake_sweep(tmp_path)], out).page
    assert page == out / "report.html"
    assert {entry.name for entry in out.iterdir()} == {
        "report.html",
        "details.html",
        "report.md",
        "report.json",
        *PNGS,
    }
    text = page.read_text()
    parsed = Page(text)
    assert parsed.tags.count("svg") >= len(PNGS)
    names = {value for name, value in parsed.attributes if name == "id"}
    links = {value or "" for name, value in parsed.attributes if name in ("src", "href")}
    assert {link[1:] for link in links if link.startswith("#")} <= names
    assert all((out / link.partition("#")[0]).is_file() for link in links if not link.startswith("#"))
    details = Page((out / "details.html").read_text())
    anchors = {link.partition("#")[2] for link in links if link.startswith("details.html#")}
    assert {"def-efficiency"} <= anchors <= {value for name, value in details.attributes if name == "id"}
    assert not re.search(r"https?://|url\(|@import|eval\(|<[^>]+ style=", text)
    assert {"link", "iframe", "img"}.isdisjoint(parsed.tags)
    twin = json.loads((out / "report.json").read_text(), parse_constant=pytest.fail)
    assert twin["schema_version"] == 7
    assert twin["repeat_plan"]["needed"].keys() == {"5", "2"}
    assert str(tmp_path) not in text + (out / "report.md").read_text() + json.dumps(twin)
    for point in twin["curves"][0]["points"]:
        efficiency = f"{100 * point['efficiency']['value']:.1f} %"
        assert efficiency in parsed.text
        assert efficiency in (out / "report.md").read_text()


@pytest.mark.usefixtures("empty_pngs")
def test_what_runs_say_stays_text(tmp_path: Path) -> None:
    sweep = fake_sweep(tmp_path, "<b>sweep", nodes=(1, 2), repeats=1, comm_method=SCRIPT, model=SCRIPT)
    fake_run(sweep / "<i>run", nodes=2, end="failed", message=f"{SCRIPT} | ![x](y)")
    page = write([sweep], tmp_path / "out").page
    parsed = Page(page.read_text())
    assert parsed.tags.count("script") == 1  # its own
    assert "i" not in parsed.tags
    assert "<b>sweep" not in page.read_text()
    details = Page((page.parent / "details.html").read_text())
    assert details.tags.count("script") == 1
    assert (parsed.text + details.text).count(SCRIPT) >= 3
    markdown = page.with_suffix(".md").read_text()
    assert "<script" not in markdown
    assert "<b>" not in markdown
    assert r"\| !\[x\](y)" in markdown


def test_excluded_runs_are_named_with_the_reason(tmp_path: Path) -> None:
    sweep = fake_sweep(tmp_path)
    fake_run(sweep / "gone", nodes=4, end="failed", message="rank 2: killed")
    fake_run(sweep / "torn", nodes=4).metrics.write_text("{")
    report = report_of([sweep])
    assert {(row["run"], row["reason"]) for row in report["excluded_runs"]} == {
        ("gone", "crashed: rank 2: killed"),
        ("torn", "finished, but metrics.json cannot be read: DecodeError: Input data was truncated"),
    }
    assert sum(len(point["runs"]) for point in report["curves"][0]["points"]) == 9


@pytest.mark.usefixtures("empty_pngs")
def test_unreadable_step_records_are_named_and_the_others_are_used(tmp_path: Path) -> None:
    sweep = fake_sweep(tmp_path, nodes=(1, 2), repeats=1)
    (steps,) = sweep.glob("n1*/attempts/000/steps-00000.jsonl")
    lines = steps.read_text().splitlines()
    steps.write_text("\n".join([*lines[:-2], '{"step": 99,', lines[-1]]) + "\n")
    write([sweep], tmp_path / "out")
    place = f"{steps.relative_to(tmp_path)}:{len(lines) - 1}"
    assert place in Page((tmp_path / "out" / "report.html").read_text()).text
    counts = {run.name: run.step_durations_s.size for run in load_runs([sweep])}
    assert counts == {"n1x1-r0": 99, "n2x1-r0": 100}


def test_nothing_finished_still_makes_a_report(tmp_path: Path) -> None:
    fake_run(tmp_path / "s" / "n1", end="planned")
    page = write([tmp_path / "s"], tmp_path / "out").page
    assert "No measured run: 1 " in Page(page.read_text()).text
    assert not list((tmp_path / "out").glob("*.png"))


@pytest.mark.usefixtures("empty_pngs")
def test_figures_of_an_earlier_report_do_not_stay(tmp_path: Path) -> None:
    sweep = fake_sweep(tmp_path, nodes=(1, 2), repeats=1)
    write([sweep], tmp_path / "out")
    assert (tmp_path / "out" / "efficiency.png").exists()
    for entry in (sweep / "n2x1-r0").iterdir():
        if entry.name in ("metrics.json", "DONE"):
            entry.unlink()
    write([sweep], tmp_path / "out")
    assert not (tmp_path / "out" / "efficiency.png").exists()  # one size left: nothing to compare


def test_a_base_is_named_with_its_absolute_numbers(tmp_path: Path) -> None:
    made = Made([fake_sweep(tmp_path)], base="2")
    assert made.report["headline"][0].startswith("4 ranks run 1.7\N{MULTIPLICATION SIGN} as fast as 2 [")
    assert "Base: 2 ranks, 118 ms a step, 136 samples/s" in made.markdown


def test_one_repeat_says_so(tmp_path: Path) -> None:
    made = Made([fake_sweep(tmp_path, repeats=1)])
    assert "no interval, n=1" in made.markdown
    assert "one repeat" in [caveat["kind"] for caveat in made.report["caveats"]]


@pytest.mark.parametrize(
    ("efficiency", "loss_by_phase", "expected"),
    [
        (
            Estimate(0.954, 0.92, 0.98, 3),
            {"comm_transfer_s": 0.3, "compute_s": -0.2, "optimizer_s": -0.05, "input_s": 0.004},
            "Net loss of 5 percentage points: data transfer costs 30, optimizer saves 5, compute saves 20.",
        ),
        (
            Estimate(1.05, 1.02, 1.08, 3),
            {"comm_wait_s": 0.02, "compute_s": -0.07},
            "Net gain of 5 percentage points: waiting for peers costs 2, compute saves 7.",
        ),
        (Estimate(0.97, 0.93, 1.01, 3), {"comm_transfer_s": 0.3}, ""),  # may be a loss or a gain
        (Estimate(0.5, None, None, 1), {"comm_transfer_s": 0.3}, ""),
        (Estimate(0.995, 0.993, 0.998, 3), {"comm_transfer_s": 0.3}, ""),  # nothing to explain
    ],
)
def test_losses_stand_beside_gains_and_only_where_settled(
    tmp_path: Path, efficiency: Estimate, loss_by_phase: dict[str, float], expected: str
) -> None:
    (curve,) = scaling_curves(load_runs([fake_sweep(tmp_path, repeats=1)]))
    losses = dict.fromkeys(PHASES, 0.0) | loss_by_phase
    point = replace(curve.points[-1], efficiency=efficiency, loss_by_phase=losses)
    assert say("net_by_phase", point) == expected


def test_emulated_runs_are_marked_at_each_figure_and_table(tmp_path: Path) -> None:
    made = Made([fake_sweep(tmp_path, emulated=True, all_ranks=True)])
    marked = ("<figcaption>", "<caption>")
    assert made.page.count('class="tag">emulated') == sum(map(made.page.count, marked))
    assert made.report["caveats"][0]["kind"] == "emulated"


def test_emulated_and_real_runs_are_never_compared(tmp_path: Path) -> None:
    sweep = fake_sweep(tmp_path, nodes=(1, 2), repeats=1)
    fake_run(sweep / "waited", nodes=4, overrides={"emulated": True})
    report = report_of([sweep])
    assert [(curve["label"], [point["size"] for point in curve["points"]]) for curve in report["curves"]] == [
        ("real", [1, 2]),
        ("emulated", [4]),
    ]
    assert report["caveats"][0]["runs"] == ["default/waited"]


def test_learning_is_judged_against_the_unigram_entropy(tmp_path: Path) -> None:
    assert "All runs end at least 2.37 bits per byte below" in Made([fake_sweep(tmp_path)]).markdown
    sweep = fake_sweep(tmp_path, "bad", eval_history=[])
    section = next(each for each in Made([sweep]).sections if each.id == "training")
    assert "unigram" not in section.conclusion


def test_a_folded_table_opens_with_a_short_line(tmp_path: Path) -> None:
    opened = re.findall(r"<summary>(.*?)</summary>", Made([fake_sweep(tmp_path)]).page)
    assert max(len(text) for text in opened) < 200


@pytest.mark.usefixtures("empty_pngs")
def test_a_folder_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"cannot write the report to .*file/report'"):
        write([fake_sweep(tmp_path, nodes=(1,), repeats=1)], tmp_path / "file" / "report")
