"""Figures in README and docs agree with the committed records that they cite."""

from __future__ import annotations

import importlib
import json

import pytest

from benchmarks import claims, result_record

RECORDS = [
    (path.stem, record)
    for path in sorted(result_record.RESULTS.glob("*.jsonl"))
    for record in result_record.read(path)
]
IDS = [f"{benchmark}#{record.get('label')}" for benchmark, record in RECORDS]


@pytest.fixture
def results(tmp_path):
    """A results folder with one record of the benchmark `speed`."""
    figures = {"step_ms": 19.57, "ratio": 1.00379, "ratio_95": [1.0024, 1.00518], "size_bytes": 2_500_000}
    result_record.save("speed", "small", figures, raw={}, folder=tmp_path)
    return tmp_path


def problem(text, results):
    """The problem of the one citation in a text, or None."""
    (citation,) = claims.citations("README.md", text)
    return claims.check(citation, results)


def link(shown, path, label="small"):
    return f"a step takes [{shown}](benchmarks/results/speed.jsonl#{label}/{path}) here"


def test_each_figure_of_the_project_has_a_source_and_agrees_with_it():
    assert claims.problems() == []


@pytest.mark.parametrize(
    ("shown", "path"),
    [
        ("19.6 ms", "step_ms"),
        ("0.020 s", "step_ms"),
        ("19,570 us", "step_ms"),
        ("1.0038", "ratio"),
        ("1.0024 to 1.0052", "ratio_95"),
        ("2.5 MB", "size_bytes"),
    ],
)
def test_a_figure_that_agrees(shown, path, results):
    assert problem(link(shown, path), results) is None


@pytest.mark.parametrize(
    ("shown", "path", "label", "message"),
    [
        ("19.5 ms", "step_ms", "small", "which gives '19.6 ms'"),
        ("1.0024 to 1.0053", "ratio_95", "small", "which gives '1.0024 to 1.0052'"),
        ("1.0024", "ratio_95", "small", "1 number(s) in the text, 2 in the record"),
        ("19.6 %", "step_ms", "small", "the text is in no unit, the record in s"),
        ("1.0038 s", "ratio", "small", "the text is in s, the record in no unit"),
        ("19.6 ms", "step", "small", "the figures have no 'step'"),
        ("19.6 ms", "step_ms", "large", "there is no record of this label"),
    ],
)
def test_a_figure_that_differs(shown, path, label, message, results):
    assert message in problem(link(shown, path, label), results)


def test_the_newest_record_of_a_label_counts(results):
    result_record.save("speed", "small", {"step_ms": 21.0}, raw={}, folder=results)
    assert "which gives '21.0 ms'" in problem(link("19.6 ms", "step_ms"), results)


def test_a_label_with_an_asterisk_cites_all_launches_of_its_records(tmp_path):
    """Ratios of 1.0 and 1.1 in one record and 1.2 in another: their geometric mean is 1.097."""

    def raw(*ratios):
        seconds = [{"disttrain": [1.0], "bare": [ratio]} for ratio in ratios]
        return {"strategies": {"ddp": [{"seconds": each, "samples_per_round": 8} for each in seconds]}}

    for label, given in (("slow-a", raw(1.0, 1.1)), ("slow-b", raw(1.2)), ("fast", raw(9.0))):
        result_record.save("trainer", label, figures={}, raw=given, folder=tmp_path)
    text = "[1.097](benchmarks/results/trainer.jsonl#slow-*/ddp/bare/ratio)"
    assert problem(text, tmp_path) is None
    assert "which gives '1.097'" in problem(text.replace("1.097", "1.096"), tmp_path)
    assert "no record of this label" in problem(text.replace("slow-", "step-"), tmp_path)


def test_a_benchmark_without_pooled_figures_is_named(tmp_path):
    result_record.save("memory", "cpu", {"peak_mib": 1.0}, raw={}, folder=tmp_path)
    text = "[1](benchmarks/results/memory.jsonl#cpu*/peak_mib)"
    assert "benchmarks.memory has no function `pooled`" in problem(text, tmp_path)


def test_a_missing_file_is_named(tmp_path):
    assert "there is no such file" in problem(link("19.6 ms", "step_ms"), tmp_path)


def test_pages_in_docs_cite_by_a_path_from_their_folder(results):
    text = "[19.6 ms](../benchmarks/results/speed.jsonl#small/step_ms)"
    assert problem(text, results) is None


@pytest.mark.parametrize(
    "text",
    [
        "costs 57 us a step",
        "a ratio of 1.0038",
        "efficiency 85.7 %",
        "in 0.19 s",
        "takes\n70 min",
        "at 119.5 MB/s",
    ],
)
def test_a_figure_without_a_source_is_found(text):
    assert len(claims.uncited(text, set())) == 1


@pytest.mark.parametrize(
    "text",
    [
        link("19.6 ms", "step_ms"),
        "a 95 % interval",
        "set `--grace-s 30 s`",
        "Python 3.11",
        "Slurm 22.05",
        "4 ranks",
    ],
)
def test_no_source_is_demanded(text):
    assert claims.uncited(text, set()) == []


def test_a_setting_needs_no_source():
    assert claims.uncited("they poll every 15 s", {"15 s"}) == []


@pytest.mark.parametrize(("benchmark", "record"), RECORDS, ids=IDS)
def test_each_record_has_its_provenance(benchmark, record):
    assert set(record) >= {"label", "date", "command", "commit", "uncommitted", "machine", "versions"}
    assert benchmark in record["command"]
    assert record["machine"]["cpu_count"] > 0
    assert record["figures"]
    assert record["raw"]


@pytest.mark.parametrize(("benchmark", "record"), RECORDS, ids=IDS)
def test_the_figures_of_a_record_follow_from_its_raw_numbers(benchmark, record):
    module = importlib.import_module(f"benchmarks.{benchmark}")
    if not hasattr(module, "figures"):
        pytest.skip(f"benchmarks/{benchmark}.py has no figures(raw)")
    recomputed = json.loads(json.dumps(module.figures(record["raw"])))
    assert dict(flat(recomputed)) == pytest.approx(dict(flat(record["figures"])))


def flat(figures, path=""):
    """Paths and numbers of nested figures."""
    if isinstance(figures, dict | list):
        for name, each in figures.items() if isinstance(figures, dict) else enumerate(figures):
            yield from flat(each, f"{path}/{name}")
    else:
        yield path, figures
