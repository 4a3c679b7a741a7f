"""The report as files: the same numbers in each, nothing unescaped, nothing from the network."""

from __future__ import annotations

import hashlib
import json
import re
from base64 import b64encode
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
from analysis.study import Study, make_study
from disttrain.errors import ConfigError
from disttrain.records.run_directory import RunDir
from tests.support.fake_runs import fake_run, fake_sweep, table_rows
from tests.support.golden import golden
from tests.support.studies import runs_of, study_of

SCRIPT = '<script>alert("x")</script>'
WHEN = "2026-01-02T03:04:05Z"


class Page(HTMLParser):
    """Checks that tags nest, and collects tags, attributes, text, and words outside of tables and figures:
    those of a page as it opens, and all."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str]] = []
        self.text = ""
        self.unfolded = self.words = 0
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]
        if tag not in {"meta", "img", "br", "hr", "link"}:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data
        if {"table", "svg", "style", "script"}.isdisjoint(self.open):
            folded = self.open.count("details") > ("summary" in self.open)
            self.unfolded += 0 if folded else len(data.split())
            self.words += len(data.split())

    def values(self, *names: str) -> list[str]:
        return [value for name, value in self.attributes if name in names]


def page_of(study: Study) -> str:
    sections: list[Section] = build_all(study)
    return render.page(document(study, sections, WHEN), sections)


def test_markdown_as_it_was_approved(tmp_path: Path) -> None:
    sweep = fake_sweep(tmp_path, all_ranks=True)
    fake_run(sweep / "n4x1-r3", nodes=4, repeat=3, end="failed", message="rank 2: RuntimeError: a | b")
    fake_run(sweep / "n8x1-r0", nodes=8, end="planned")
    study = make_study(load_runs([sweep]))
    sections = build_all(study)
    golden("report.md", render.markdown(document(study, sections, WHEN), sections))


def test_the_files_agree_and_stand_alone(tmp_path: Path) -> None:
    sweep, out = fake_sweep(tmp_path, nodes=(1, 2)), tmp_path / "out"
    assert write([sweep], out).page == out / "report.html"
    twin = json.loads((out / "report.json").read_text(), parse_constant=pytest.fail)
    images = {figure["file"] for figure in twin["figures"]}
    texts = {"report.html", "details.html", "report.md", "report.json"}
    assert {entry.name for entry in out.iterdir()} == texts | images
    assert len(images) > 8
    assert all((out / image).read_bytes().startswith(b"\x89PNG") for image in images)
    page, details = (Page((out / name).read_text()) for name in ("report.html", "details.html"))
    assert page.tags.count("svg") == len(images)
    for link in page.values("src", "href"):
        file, _, anchor = link.partition("#")
        assert not file or (out / file).is_file(), link
        assert not anchor or anchor in (details if file else page).values("id"), link
    text = (out / "report.html").read_text()
    assert not re.search(r"https?://|url\(|@import|eval\(|<[^>]+ (style|on\w+)=", text)
    assert not {"link", "iframe", "img"} & set(page.tags)
    markdown = (out / "report.md").read_text()
    assert str(tmp_path) not in text + markdown + json.dumps(twin)
    for point in twin["curves"][0]["points"]:
        efficiency = f"{100 * point['efficiency']['value']:.1f} %"
        assert efficiency in page.text
        assert efficiency in markdown
    row = table_rows(twin, "scaling")[1]
    assert row["efficiency"].keys() == {"value", "low", "high", "repeats", "basis"}
    assert row["efficiency"]["low"] < row["efficiency"]["value"] < row["efficiency"]["high"] < 1
    scaling = next(each for each in twin["sections"] if each["id"] == "scaling")
    assert scaling["tables"][0]["sources"][1] == ["n2x1-r0", "n2x1-r1", "n2x1-r2"]


@pytest.mark.usefixtures("empty_pngs")
def test_what_runs_say_stays_text(tmp_path: Path) -> None:
    sweep = fake_sweep(tmp_path, "<b>sweep", nodes=(1, 2), repeats=1, comm_method=SCRIPT, model=SCRIPT)
    fake_run(sweep / "<i>run", nodes=2, end="failed", message=f"{SCRIPT} | ![x](y)")
    write([sweep], tmp_path / "out")
    pages = [Page((tmp_path / "out" / name).read_text()) for name in ("report.html", "details.html")]
    for page in pages:
        assert page.tags.count("script") == 1, "its own"
        assert not {"i", "b"} & set(page.tags)
    assert sum(page.text.count(SCRIPT) for page in pages) >= 3
    markdown = (tmp_path / "out" / "report.md").read_text()
    assert "<script" not in markdown
    assert "<b>" not in markdown
    assert r"\| !\[x\](y)" in markdown


@pytest.mark.usefixtures("empty_pngs")
def test_a_later_report_leaves_no_figure_of_an_earlier_one(tmp_path: Path) -> None:
    sweep, out = fake_sweep(tmp_path, nodes=(1, 2), repeats=1), tmp_path / "out"
    write([sweep], out)
    (out / "mine.png").write_text("")
    assert (out / "efficiency.png").exists()
    for run in sweep.iterdir():
        (run / "metrics.json").unlink()
    (sweep / "n1x1-r0" / "DONE").unlink()
    write([sweep], out)
    assert "No measured run: " in Page((out / "report.html").read_text()).text
    assert [image.name for image in out.glob("*.png")] == ["mine.png"]


def test_a_run_is_linked_by_its_metrics_or_else_by_its_plan(tmp_path: Path) -> None:
    fake_run(tmp_path / "s" / "done")
    fake_run(tmp_path / "s" / "planned", end="planned")
    links = {run.name: render.run_href(run, tmp_path / "out") for run in load_runs([tmp_path / "s"])}
    assert links == {"done": "../s/done/metrics.json", "planned": "../s/planned/run.json"}


@pytest.mark.usefixtures("empty_pngs")
def test_a_folder_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"cannot write the report to .*file/report'"):
        write([fake_sweep(tmp_path, nodes=(1,), repeats=1)], tmp_path / "file" / "report")


def test_excluded_runs_are_named_with_the_reason_and_not_in_the_curves() -> None:
    counted, *failed = runs_of(nodes=(1,))
    failed = [replace(run, included=False, state="failed", note="crashed: killed") for run in failed]
    report = document(make_study([counted, *failed]), [], WHEN)
    assert [(row["run"], row["reason"]) for row in report["excluded_runs"]] == [
        ("n1x1-r1", "crashed: killed"), ("n1x1-r2", "crashed: killed"),
    ]  # fmt: skip
    assert report["curves"][0]["points"][0]["runs"] == ["n1x1-r0"]
    assert document(make_study(failed), [], WHEN)["headline"] == ["No measured run: 2 failed (crashed)"]


@pytest.mark.parametrize("changes", [{}, {"axes": [{"optim.lr": 1e-3}, {"optim.lr": 2e-3}]}])
def test_the_page_is_short_and_opens_shorter(changes: dict[str, Any]) -> None:
    study = study_of(all_ranks=True, **changes)
    text = page_of(study)
    page = Page(text)
    assert 150 < page.unfolded <= 500
    assert page.words <= 2500
    assert max(map(len, re.findall(r"<summary>(.*?)</summary>", text))) < 200


def test_a_number_stays_with_its_unit_and_an_option_with_its_value() -> None:
    text = render.unbroken("10 % of 2 nodes & <b> by --repeats 3")
    assert text == '10\xa0% of 2\xa0nodes &amp; &lt;b&gt; by <span class="option">--repeats 3</span>'


@pytest.fixture(scope="module")
def many() -> str:
    """The page of 54 emulated runs in 6 configurations."""
    axes = [{"optim.lr": lr / 1000} for lr in range(1, 7)]
    known = runs_of(nodes=(1, 2, 4), repeats=1, axes=axes, emulated=True)
    repeats = [replace(run, folder=RunDir(Path(f"{run.path}{at}"))) for run in known for at in range(3)]
    return page_of(make_study(repeats))


def test_a_page_of_many_runs_stays_below_a_megabyte(many: str) -> None:
    assert len(many.encode()) < 1_000_000


def test_emulated_results_are_marked_at_each_figure_and_table(many: str) -> None:
    marked = many.count("<figcaption>") + many.count("<caption>")
    assert many.count('class="tag">emulated') == marked > 10
    assert "(emulated)</title>" in many
    assert "emulated" not in page_of(study_of(nodes=(1, 2), repeats=1)).partition("</style>")[2]


def test_the_policy_allows_this_style_and_script_and_nothing_else(many: str) -> None:
    (policy,) = re.findall(r'Content-Security-Policy" content="([^"]*)"', many)
    parts = {}
    for kind in ("style", "script"):
        (parts[kind],) = re.findall(f"<{kind}>(.*?)</{kind}>", many, re.DOTALL)
        digest = b64encode(hashlib.sha256(parts[kind].encode()).digest()).decode()
        assert f"{kind}-src &#39;sha256-{digest}&#39;" in policy
    assert policy.startswith("default-src &#39;none&#39;")
    assert "unsafe" not in policy
    assert len(parts["script"]) < 15_000
    assert not re.search(r"eval|Function\(|fetch|XMLHttpRequest|import\(", parts["script"])


def test_the_page_has_landmarks_and_described_figures(many: str) -> None:
    for tag in ("<header>", '<main id="main">', "<footer>"):
        assert many.count(tag) == 1
    svgs = re.findall(r"<svg[^>]*>", many)
    assert svgs
    assert all('role="img"' in svg and "aria-label=" in svg for svg in svgs)
    first, *headings = re.findall(r"<(h\d)", many)
    assert (first, set(headings)) == ("h1", {"h2"})
    assert many.count("<caption>") == many.count("<table")
    assert not re.search(r"<th(?! scope=)", many.replace("<thead", ""))
    links = re.findall(r'<a href="[^"]*"( title="[^"]*" aria-label="\d+: run [^"]*")?>\d+</a>', many)
    assert links
    assert all(links), "a screen reader names the run behind each number"
    ids = Page(many).values("id")
    assert len(ids) == len(set(ids))


def test_cells_carry_their_heading_for_narrow_screens(many: str) -> None:
    for table in re.findall(r"<table.*?</table>", many, re.DOTALL):
        heads = re.findall(r"<th scope=\"col\"[^>]*>(?:<a[^>]*>)?([^<]*)<", table)
        assert ('class="stack"' in table) == (len(heads) > 3)
        body = re.findall(r'data-h="([^"]*)"', table)
        assert body == heads * (len(body) // len(heads))
