"""Config keys stay the same, so that a new version finds the runs of an earlier one."""

from __future__ import annotations

from pathlib import Path

import pytest

from disttrain.config.config_tree import Config
from disttrain.config.parsing import check, load, with_batch
from disttrain.config.run_key import config_key
from disttrain.config.sections.job import JobConfig

SWEEPS = Path(__file__).parents[2] / "sweeps"
# A change of one of these is a break for users: a repeated sweep would not find its runs, and compute them
# again. Only a changed value in the file itself is a reason for another key.
PINNED = {
    "default.yaml": "6600d1d871c1",
    "gpt-1.3b-fsdp.yaml": "f64f6ac536d2",
    "resnet50-ddp.yaml": "99913f8421f9",
}


def test_a_later_field_enters_the_key_only_where_it_is_set() -> None:
    class Job(JobConfig):
        launcher: str = "torchrun"

    class Later(Config):
        job: Job = Job()

    assert config_key(Later()) == config_key(Config())
    assert config_key(Later(job=Job(launcher="mpirun"))) != config_key(Config())


@pytest.mark.parametrize(("name", "key"), PINNED.items())
def test_the_keys_of_these_configs_stay(name: str, key: str) -> None:
    draft = load(SWEEPS / name)
    config, _ = with_batch(check(draft), draft)
    assert config_key(config) == key
