"""What a benchmark writes."""

from __future__ import annotations

import argparse
import json

import pytest

from benchmarks import result_record


def test_a_record_has_command_commit_machine_and_raw_numbers(tmp_path, monkeypatch):
    arguments = [str(result_record.ROOT / "benchmarks" / "help.py"), "--repeats", "3"]
    monkeypatch.setattr("sys.argv", arguments)
    path = result_record.save("help", "quick", {"median_s": 0.03}, {"taken_s": [0.03]}, ["torch"], tmp_path)
    (record,) = result_record.read(path)
    assert path == tmp_path / "help.jsonl"
    assert record["label"] == "quick"
    assert record["command"] == "python -m benchmarks.help --repeats 3"
    assert set(record["machine"]) == {"processor", "cpu_count", "memory_bytes", "system", "load_at_start"}
    assert set(record["versions"]) == {"python", "torch"}
    assert (record["figures"], record["raw"]) == ({"median_s": 0.03}, {"taken_s": [0.03]})


def test_records_are_appended(tmp_path):
    for _ in range(2):
        result_record.save("help", "quick", {"median_s": 0.03}, {}, folder=tmp_path)
    assert len(result_record.read(tmp_path / "help.jsonl")) == 2


def test_nothing_is_written_without_a_label(tmp_path):
    assert result_record.save("help", None, {}, {}, folder=tmp_path) is None
    assert list(tmp_path.iterdir()) == []


def test_a_figure_that_is_not_finite_is_refused(tmp_path):
    with pytest.raises(ValueError, match="Out of range"):
        result_record.save("help", "quick", {"median_s": float("nan")}, {}, folder=tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("label", ["Quick", "a b", "a_b", "a/b", ""])
def test_a_label_has_to_fit_into_a_link(label, capsys):
    parser = argparse.ArgumentParser()
    result_record.add_option(parser)
    with pytest.raises(SystemExit):
        parser.parse_args(["--save", label])
    assert "lower-case words" in capsys.readouterr().err


def test_the_record_is_one_line_of_json(tmp_path):
    path = result_record.save("help", "quick", {"median_s": 0.03}, {"taken_s": [0.03, 0.04]}, folder=tmp_path)
    (line,) = path.read_text().splitlines()
    assert json.loads(line)["raw"] == {"taken_s": [0.03, 0.04]}
