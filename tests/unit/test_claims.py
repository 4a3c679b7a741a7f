"""Records of benchmarks, and the figures in README and docs that cite them."""

from __future__ import annotations

import argparse
import importlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks import claims, result_record

RECORDS = [
    (path.stem, record)
    for path in sorted(result_record.RESULTS.glob("*.jsonl"))
    for record in result_record.read(path)
]
IDS = [f"{benchmark}#{record.get('label')}" for benchmark, record in RECORDS]


@pytest.fixture
def results(tmp_path: Path) -> Path:
    """A results folder with one record of the benchmark `speed`."""
    figures = {"step_ms": 19.57, "ratio": 1.00379, "ratio_95": [1.0024, 1.00518], "size_bytes": 2_500_000}
    result_record.save("speed", "small", figures, raw={}, folder=tmp_path)
    return tmp_path


def problem(text: str, results: Path) -> str:
    """The problem of the one citation in a text, or nothing."""
    (citation,) = claims.citations("README.md", text)
    return claims.check(citation, results) or ""


def link(shown: str, path: str, label: str = "small") -> str:
    return f"a step takes [{shown}](benchmarks/results/speed.jsonl#{label}/{path}) here"


def flat(figures: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Paths and numbers of nested figures."""
    if isinstance(figures, dict | list):
        for name, each in figures.items() if isinstance(figures, dict) else enumerate(figures):
            yield from flat(each, f"{path}/{name}")
    else:
        yield path, figures


def test_each_figure_of_the_project_has_a_source_and_agrees_with_it() -> None:
    assert claims.problems() == []


@pytest.mark.parametrize(("benchmark", "record"), RECORDS, ids=IDS)
def test_a_record_has_its_provenance_and_its_figures_follow_from_its_raw_numbers(
    benchmark: str, record: dict[str, Any]
) -> None:
    assert set(record) >= {"label", "date", "command", "commit", "uncommitted", "machine", "versions"}
    assert "benchmarks" in record["command"]
    assert record["raw"]
    module = importlib.import_module(f"benchmarks.{benchmark}")
    recomputed = json.loads(json.dumps(module.figures(record["raw"])))
    assert dict(flat(recomputed)) == pytest.approx(dict(flat(record["figures"])))


@pytest.mark.parametrize(
    ("shown", "path", "label", "message"),
    [
        ("19.6 ms", "step_ms", "small", ""),
        ("0.020 s", "step_ms", "small", ""),
        ("19,570 us", "step_ms", "small", ""),
        ("1.0038", "ratio", "small", ""),
        ("1.0024 to 1.0052", "ratio_95", "small", ""),
        ("2.5 MB", "size_bytes", "small", ""),
        ("19.5 ms", "step_ms", "small", "which gives '19.6 ms'"),
        ("1.0024 to 1.0053", "ratio_95", "small", "which gives '1.0024 to 1.0052'"),
        ("1.0024", "ratio_95", "small", "1 number(s) in the text, 2 in the record"),
        ("19.6 %", "step_ms", "small", "the text is in no unit, the record in s"),
        ("1.0038 s", "ratio", "small", "the text is in s, the record in no unit"),
        ("19.6 ms", "step", "small", "the figures have no 'step'"),
        ("19.6 ms", "step_ms", "large", "there is no record of this label"),
    ],
)
def test_a_figure_agrees_with_its_record_in_its_unit_and_digits(
    shown: str, path: str, label: str, message: str, results: Path
) -> None:
    text = link(shown, path, label)
    for cited in (text, text.replace("(benchmarks", "(../benchmarks")):  # of README, and of a page in docs
        found = problem(cited, results)
        assert message in found if message else found == ""


def test_the_newest_record_of_a_label_counts_and_a_missing_file_is_named(results: Path) -> None:
    result_record.save("speed", "small", {"step_ms": 21.0}, raw={}, folder=results)
    assert "which gives '21.0 ms'" in problem(link("19.6 ms", "step_ms"), results)
    assert "there is no such file" in problem(link("19.6 ms", "step_ms"), results / "none")


def test_a_label_with_an_asterisk_cites_all_launches_of_its_records(tmp_path: Path) -> None:
    """Ratios of 1.0 and 1.1 in one record and 1.2 in another: their geometric mean is 1.097."""
    for label, ratios in (("slow-a", (1.0, 1.1)), ("slow-b", (1.2,)), ("fast", (9.0,))):
        launches = [
            {"seconds": {"disttrain": [1.0], "bare": [ratio]}, "samples_per_round": 8} for ratio in ratios
        ]
        result_record.save("trainer", label, figures={}, raw={"cases": {"ddp": launches}}, folder=tmp_path)
    text = "[1.097](benchmarks/results/trainer.jsonl#slow-*/ddp/bare/ratio)"
    assert problem(text, tmp_path) == ""
    assert "which gives '1.097'" in problem(text.replace("1.097", "1.096"), tmp_path)
    assert "no record of this label" in problem(text.replace("slow-", "step-"), tmp_path)
    result_record.save("memory", "cpu", {"peak_mib": 1.0}, raw={}, folder=tmp_path)
    text = "[1](benchmarks/results/memory.jsonl#cpu*/peak_mib)"
    assert "benchmarks.memory has no function `pooled`" in problem(text, tmp_path)


@pytest.mark.parametrize(
    ("text", "uncited"),
    [
        ("costs 57 us a step", ["57 us"]),
        ("a ratio of 1.0038", ["1.0038"]),
        ("takes\n70 min, 85.7 %", ["70 min", "85.7 %"]),
        ("at 119.5 MB/s", ["119.5 MB/s"]),
        (link("19.6 ms", "step_ms"), []),
        ("a 95 % interval of `30 s`, Python 3.11, Slurm 22.05, 4 ranks, every 15 s", []),
    ],
)
def test_a_figure_without_a_source_is_found_unless_it_is_no_measurement(
    text: str, uncited: list[str]
) -> None:
    assert [shown for _, shown in claims.uncited(text, {"15 s"})] == uncited


def test_a_record_has_command_machine_and_raw_numbers_on_a_line_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", [str(result_record.ROOT / "benchmarks" / "help.py"), "--repeats", "3"])
    for label in ("quick", None, "quick"):
        result_record.save("help", label, {"median_s": 0.03}, {"taken_s": [0.03]}, ["torch"], tmp_path)
    with pytest.raises(ValueError, match="Out of range"):
        result_record.save("help", "quick", {"median_s": float("nan")}, {}, folder=tmp_path)
    record, again = result_record.read(tmp_path / "help.jsonl")
    assert record["label"] == again["label"] == "quick", "nothing is written without a label"
    assert record["command"] == "python -m benchmarks.help --repeats 3"
    assert set(record["machine"]) == {"processor", "cpu_count", "memory_bytes", "system", "load_at_start"}
    assert set(record["versions"]) == {"python", "torch"}
    assert (record["figures"], record["raw"]) == ({"median_s": 0.03}, {"taken_s": [0.03]})


@pytest.mark.parametrize("label", ["Quick", "a b", "a_b", "a/b", ""])
def test_a_label_has_to_fit_into_a_link(label: str) -> None:
    parser = argparse.ArgumentParser(exit_on_error=False)
    result_record.add_option(parser)
    with pytest.raises(argparse.ArgumentError):
        parser.parse_args(["--save", label])
