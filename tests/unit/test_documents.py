"""Generated documents are current, and the schemas accept what we write and nothing else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from disttrain.config.config_tree import Config
from disttrain.config.parsing import known_keys
from disttrain.records.attempt import Outcome, Progress
from disttrain.records.base import Record
from docs.generate import configuration
from docs.generate.__main__ import main
from docs.generate.files import table, update_files
from docs.generate.records import FILES

DOCS = Path(__file__).resolve().parents[2] / "docs"


def schema(name: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((DOCS / "schemas" / f"{name}.json").read_text())
    return content


def test_the_committed_files_are_current_and_each_schema_is_generated(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["--check"]) == 0, capsys.readouterr().err


@pytest.mark.parametrize("name", FILES)
def test_a_schema_is_valid_and_closed_but_for_rows_of_telemetry(name: str) -> None:
    content = schema(name)
    Draft202012Validator.check_schema(content)
    assert not Draft202012Validator(content).is_valid({"surprise": 1})
    assert content["additionalProperties"] is (name in ("gpu-sample", "host-sample"))


@pytest.mark.parametrize(
    ("name", "record"),
    [
        ("outcome", Outcome(cause="finished", attempt=0, ended="2026-01-01T00:00:00Z", retryable=False)),
        (
            "progress",
            Progress(attempt=0, step=1, steps=2, samples_per_s=None, loss=1.5, eta_s=None, updated=1.0),
        ),
    ],
)
def test_a_schema_accepts_what_is_written(name: str, record: Record) -> None:
    validator, written = Draft202012Validator(schema(name)), json.loads(record.model_dump_json())
    validator.validate(written)
    assert not validator.is_valid(written | {"attempt": "first"})
    assert not validator.is_valid(written | {"surprise": 1})


def test_every_key_and_option_is_in_the_reference_with_a_meaning() -> None:
    lines = configuration.configuration({}).splitlines()
    rows = [line.split(" | ") for line in lines if line.startswith("`") and " | " in line]
    meanings = {row[0].split("`")[1]: row[2] for row in rows}
    keys = known_keys()
    assert [key for key in keys if not meanings.get(key)] == []
    text = (DOCS / "reference" / "configuration.md").read_text()
    assert [name for name in Config.model_fields if f"\n## {name}\n" not in text] == []
    for section, package in {"model": "models", "data": "data"}.items():
        for builder in configuration.builders()[package].values():
            keys += [f"{section}.{option}" for option in builder.types]
            required = {option for option in builder.types if option not in builder.defaults}
            assert all(f"`{section}.{option}` | required" in text for option in required)
    assert [key for key in keys if f"\n`{key}`" not in text] == []


def test_check_lists_what_is_out_of_date_and_a_plain_call_mends_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("docs.generate.files.ROOT", tmp_path)
    stale, missing, orphan = (tmp_path / name for name in ("stale.json", "missing.json", "gone.json"))
    stale.write_text("old")
    orphan.write_text("{}")
    files = (dict.fromkeys((stale, missing), "new"), [orphan])
    assert update_files(*files, ["--check"]) == 1
    listed = [line.split()[0] for line in capsys.readouterr().err.splitlines()]
    assert listed == ["stale.json", "missing.json", "gone.json"]
    assert (stale.read_text(), missing.exists(), orphan.exists()) == ("old", False, True)
    assert update_files(*files, []) == 0
    assert (stale.read_text(), missing.read_text(), orphan.exists()) == ("new", "new", False)


def test_a_line_break_in_a_meaning_does_not_end_the_row_of_a_table() -> None:
    rendered = table(["key", "meaning"], [["`a.b`", "One line,\nor two | three."]])
    assert rendered.splitlines()[2:] == [r"`a.b` | One line, or two \| three."]
