"""Config keys stay the same, so that a new version finds the runs of an earlier one."""

from __future__ import annotations

import functools

import pytest

from disttrain.config import run_key
from disttrain.config.config_tree import Config, config_fields
from disttrain.config.run_key import config_key
from disttrain.config.sections.base import KeyedIfSet
from disttrain.config.sections.job import JobConfig


def test_a_later_field_enters_the_key_only_where_it_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    class Job(JobConfig):
        launcher: KeyedIfSet[str] = "torchrun"

    class Later(Config):
        job: Job = Job()

    before = config_key(Config())
    monkeypatch.setattr(run_key, "Config", Later)
    monkeypatch.setattr(run_key, "_marked", run_key._marked.__wrapped__)
    monkeypatch.setattr(run_key, "config_fields", functools.partial(config_fields, Later))
    assert config_key(Later()) == before
    assert config_key(Later(job=Job(launcher="mpirun"))) != before
