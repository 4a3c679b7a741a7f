"""Config keys stay the same, so that a new version finds the runs of an earlier one."""

from __future__ import annotations

import pytest

from disttrain.config.parsing import Draft, check
from disttrain.config.run_key import config_key

TWO = {"gpus_per_node": 2}


@pytest.mark.parametrize(
    ("sections", "key"),
    [
        ({"model": {"kind": "mlp"}, "data": {"kind": "digits"}}, "d1a009a1f7d1"),
        ({"model": {"kind": "gpt", "layers": 2}, "data": {"kind": "text"}}, "166f9b4560bb"),
        ({"model": {"kind": "resnet"}, "data": {"kind": "digits"}}, "5e489b7796f2"),
        ({"model": {"kind": "emulated", "layers": 4}}, "8ac367239c53"),
        ({"parallel": {"strategy": "ddp"}, "resources": TWO}, "177f3c8c4ca7"),
        ({"parallel": {"strategy": "fsdp"}, "resources": TWO}, "ee2a5392cd0e"),
        ({"parallel": {"strategy": "dp"}}, "201f6d477561"),
    ],
    ids=lambda each: str(each)[:40],
)
def test_configs_keep_the_keys_of_earlier_versions(sections, key):
    """A new option has a default that is a name (see `_ALL_STEPS` of models/emulated.py); a new key of a
    section is `KEYED_IF_SET`."""
    assert config_key(check(Draft({**sections, "train": {"steps": 8, "local_batch_size": 8}}))) == key
