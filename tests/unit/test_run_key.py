"""Config keys stay the same, so that a new version finds the runs of an earlier one."""

from __future__ import annotations

import functools
from typing import Annotated

import pytest
from pydantic import Field

from disttrain.config import run_key
from disttrain.config.config_tree import Config, config_fields
from disttrain.config.parsing import Draft, check
from disttrain.config.run_key import config_key
from disttrain.config.sections.base import KEYED_IF_SET
from disttrain.config.sections.job import JobConfig

TWO = {"gpus_per_node": 2}


@pytest.mark.parametrize(
    ("sections", "key"),
    [
        ({"model": {"kind": "mlp"}, "data": {"kind": "digits"}}, "9b052bfde916"),
        ({"model": {"kind": "gpt", "layers": 2}, "data": {"kind": "text"}}, "e7b5db8c21d8"),
        ({"model": {"kind": "resnet"}, "data": {"kind": "digits"}}, "6adea5582d36"),
        ({"model": {"kind": "emulated", "layers": 4}}, "b824b6e5c011"),
        ({"parallel": {"strategy": "ddp"}, "resources": TWO}, "43d22b01ac83"),
        ({"parallel": {"strategy": "fsdp"}, "resources": TWO}, "9482586f2275"),
        ({"parallel": {"strategy": "dp"}}, "77150eaf558a"),
    ],
    ids=lambda each: str(each)[:40],
)
def test_configs_keep_the_keys_of_earlier_versions(sections, key):
    """A new option has a default that is a name (see `_ALL_STEPS` of models/emulated.py); a new key of a
    section is `KEYED_IF_SET`."""
    assert config_key(check(Draft({**sections, "train": {"steps": 8, "local_batch_size": 8}}))) == key


def test_a_later_field_enters_the_key_only_where_it_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    class Job(JobConfig):
        launcher: Annotated[str, Field(json_schema_extra=KEYED_IF_SET)] = "torchrun"

    class Later(Config):
        job: Job = Job()

    before = config_key(Config())
    monkeypatch.setattr(run_key, "Config", Later)
    monkeypatch.setattr(run_key, "_later_keys", run_key._later_keys.__wrapped__)
    monkeypatch.setattr(run_key, "config_fields", functools.partial(config_fields, Later))
    assert config_key(Later()) == before
    assert config_key(Later(job=Job(launcher="mpirun"))) != before
