"""true and false are no numbers: in no section of the config, and in no file besides."""

from __future__ import annotations

import copy

import pytest
from pydantic import ValidationError

from disttrain.config.config_tree import config_fields
from disttrain.config.parsing import Draft, check
from disttrain.config.type_names import type_name
from disttrain.errors import ConfigError
from disttrain.records.layers import LayerTime
from jobs.schedulers.slurm.profile import Profile

GOOD = {"model": {"kind": "mlp"}, "data": {"kind": "digits"}, "train": {"steps": 5, "local_batch_size": 4}}
TYPES = {key: type_name(field.rebuild_annotation()) for key, field in config_fields()}
SINGLE = {key for key, kind in TYPES.items() if kind.startswith(("int", "float"))}
BOOLEAN = {key for key, kind in TYPES.items() if kind == "bool"}


def refusal(key: str, value: object) -> str:
    draft = Draft(copy.deepcopy(GOOD))
    draft.set(key, value, f"--{key}")
    with pytest.raises(ConfigError) as caught:
        check(draft)
    return str(caught.value)


@pytest.mark.parametrize("key", sorted(SINGLE))
@pytest.mark.parametrize("value", [True, False])
def test_a_boolean_is_no_number_in_the_config(key: str, value: bool) -> None:
    allowed = TYPES[key].replace("`", "'")
    assert refusal(key, value) == f"--{key}: {key}={value}: allowed: {allowed}, not true or false"


def test_fields_for_booleans_take_them() -> None:
    assert len(BOOLEAN) > 5
    for key in sorted(key for key in BOOLEAN if "gradient_communication" not in key):  # needs a scheme
        draft = Draft(copy.deepcopy(GOOD))
        draft.set(key, False, f"--{key}")
        check(draft)


def test_nor_in_a_profile_or_in_a_table_of_layers() -> None:
    with pytest.raises(ValidationError, match="not true or false"):
        Profile.model_validate({"name": "a", "cpus_per_task": True})
    with pytest.raises(ValidationError, match="valid number"):
        LayerTime.model_validate({"name": "a", "bytes": 4, "forward_s": True, "backward_s": 1.0})
    assert Profile(name="a", exclusive=True).exclusive is True
