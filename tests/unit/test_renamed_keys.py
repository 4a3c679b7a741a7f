"""A renamed config key is refused in a new config and translated in an old record."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from disttrain.__main__ import parse_arguments, read_config
from disttrain.config import renamed_keys
from disttrain.config.parsing import Draft, check, known_keys
from disttrain.errors import ConfigError
from disttrain.records.json_files import CorruptFile, read_json, write_json
from disttrain.records.planned import RunRecord
from disttrain.records.run_directory import RunDir
from disttrain.records.run_json import read_run_json, read_run_json_or_none
from sweeps.sweep_section import SweepSection, check_exclude_keys
from tests.support.fake_runs import fake_run

BASE: dict[str, Any] = {"train": {"steps": 1, "local_batch_size": 1}}


@pytest.fixture(autouse=True)
def _renames(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(renamed_keys, "RENAMED", {"job.patience_s": "job.rendezvous_timeout_s"})
    monkeypatch.setattr(renamed_keys, "REMOVED", {"telemetry.magic": "the figure is always measured"})


def test_an_old_key_in_a_file_or_a_flag_is_refused_with_the_new_name() -> None:
    draft = Draft({**BASE, "job": {"patience_s": 5}}, {"job.patience_s": "tiny.yaml:7"})
    with pytest.raises(ConfigError) as refused:
        check(draft)
    assert str(refused.value) == "tiny.yaml:7: 'job.patience_s' was renamed: use 'job.rendezvous_timeout_s'"


def test_a_removed_key_is_refused_with_the_reason_even_if_it_is_null() -> None:
    draft = Draft(dict(BASE))
    draft.set("telemetry.magic", None, "--telemetry.magic")
    with pytest.raises(
        ConfigError, match=r"^--telemetry.magic: 'telemetry.magic' was removed: the figure is"
    ):
        check(draft)


def test_an_old_key_in_a_sweeps_exclude_is_refused_with_the_new_name() -> None:
    with pytest.raises(ConfigError, match=r"use 'job\.rendezvous_timeout_s'"):
        check_exclude_keys(SweepSection(exclude=[{"job.patience_s": 5}]), set(), Draft(dict(BASE)))


def test_a_recorded_config_is_translated_and_left_as_it_is() -> None:
    recorded = {
        **BASE,
        "job": {"patience_s": 5, "max_attempts": 2},
        "telemetry": {"magic": 1, "warmup_steps": 3},
    }
    assert renamed_keys.translate(recorded) == {
        **BASE,
        "job": {"rendezvous_timeout_s": 5, "max_attempts": 2},
        "telemetry": {"warmup_steps": 3},
    }
    assert recorded["job"] == {"patience_s": 5, "max_attempts": 2}


def test_a_key_may_move_into_a_section_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(renamed_keys, "RENAMED", {"parallel.bucket_mb": "parallel.ddp.bucket_mb"})
    translated = renamed_keys.translate({"parallel": {"strategy": "ddp", "bucket_mb": 1}})
    assert translated == {"parallel": {"strategy": "ddp", "ddp": {"bucket_mb": 1}}}


def test_a_value_under_the_new_key_wins() -> None:
    both = {"job": {"patience_s": 5, "rendezvous_timeout_s": 6}}
    assert renamed_keys.translate(both) == {"job": {"rendezvous_timeout_s": 6}}


def test_every_reader_of_an_old_run_json_sees_the_new_keys(tmp_path: Path) -> None:
    run = RunDir(tmp_path / "sweep" / "run")
    record = read_json(fake_run(run.path, end="planned").run_json)
    record["config"]["job"]["patience_s"] = record["config"]["job"].pop("rendezvous_timeout_s")
    record["axes"] = {"job.patience_s": 120.0, "telemetry.magic": 1}
    write_json(run.run_json, record)

    read = read_run_json(run)
    assert read == read_run_json_or_none(run)
    model = RunRecord.model_validate(record)
    for config, axes in ((read["config"], read["axes"]), (model.config, model.axes)):
        assert config["job"]["rendezvous_timeout_s"] == 120.0
        assert "patience_s" not in config["job"]
        assert axes == {"job.rendezvous_timeout_s": 120.0}
    arguments, flags = parse_arguments(["--run-dir", str(run.path)])
    assert read_config(arguments, flags).job.rendezvous_timeout_s == 120.0


def test_a_run_json_that_cannot_be_read_is_none(tmp_path: Path) -> None:
    assert read_run_json_or_none(RunDir(tmp_path)) is None
    (tmp_path / "run.json").write_text("[")
    assert read_run_json_or_none(RunDir(tmp_path)) is None
    with pytest.raises(CorruptFile):
        read_run_json(RunDir(tmp_path))


def test_a_new_name_is_a_key_of_today_and_an_old_name_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    keys = set(known_keys())
    assert [old for old in (*renamed_keys.RENAMED, *renamed_keys.REMOVED) if old in keys] == []
    assert [new for new in renamed_keys.RENAMED.values() if new not in keys] == []
