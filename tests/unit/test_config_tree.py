"""The config tree: what counts as the same run, and what importing it costs."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any, Literal, get_args, get_origin

import pytest
from pydantic import ValidationError

from disttrain.config.config_tree import Config, config_fields
from disttrain.config.dotted_keys import flat_values
from disttrain.config.parsing import Draft
from disttrain.config.run_key import config_key, keyed_values
from disttrain.config.sections.base import is_excluded_from_key

PLAIN = {"model": {"kind": "gpt", "layers": 2, "width": 64}, "train": {"steps": 5, "local_batch_size": 4}}
FIELDS = dict(config_fields())


def another_value(field: Any) -> Any:
    """A valid value of a field that is not its default."""
    default = field.default
    if get_origin(field.annotation) is Literal:
        return next(value for value in get_args(field.annotation) if value != default)
    if default is None:
        kind = next(item for item in get_args(field.annotation) if item is not type(None))
        if getattr(kind, "__origin__", None) is tuple:
            return (7, 8)
        return {bool: True, int: 7, float: 0.5, str: "x"}.get(getattr(kind, "__origin__", kind), 7)
    if isinstance(default, bool):
        return not default
    if isinstance(default, float) and 0 < default < 1:
        return default / 2  # 1 may be the largest value
    if isinstance(default, int | float):
        return default * 2 + 1
    if isinstance(default, str):
        return default + "x"
    if isinstance(default, dict):
        return {"NCCL_DEBUG": "INFO"}
    assert isinstance(default, tuple)
    if not default:
        return ("package.module:function",)
    changed = default[::-1]
    return changed if changed != default else (*default, "more" if isinstance(default[0], str) else 7)


@pytest.mark.parametrize("key", FIELDS)
def test_the_key_changes_with_every_field_that_is_not_excluded(key):
    field = FIELDS[key]
    draft = Draft()
    draft.set(key, another_value(field), "a test")
    changed = Config.model_validate(draft.data)
    assert flat_values(changed.as_dict()) != flat_values(Config().as_dict())
    assert (config_key(changed) == config_key(Config())) == is_excluded_from_key(field)


def test_excluded_from_the_key_is_what_cannot_change_the_numbers():
    assert [key for key, field in FIELDS.items() if is_excluded_from_key(field)] == [
        "train.log_every",
        "job.time_limit_min",
        "job.max_attempts",
        "job.max_requeues",
        "job.rendezvous_timeout_s",
        "job.stop_lead_s",
        "job.stop_check_s",
        "job.preflight",
        "job.setup_timeout_s",
        "job.step_timeout_s",
        "job.checkpoint_timeout_s",
        "job.evaluation_timeout_s",
        "job.collective_timeout_s",
        "job.script_step_timeout_s",
        "job.stop_signal",
        "job.secrets",
        "job.on_end",
        "checkpoint.every_s",
        "checkpoint.keep",
        "checkpoint.dir",
        "telemetry.profiled_steps",
        "telemetry.full_records",
        "telemetry.flush_every_s",
        "telemetry.gpu_every_s",
        "telemetry.fields",
        "telemetry.sinks",
        "profile.steps",
        "profile.ranks",
    ]
    assert "log_every" not in keyed_values(Config())["train"]


def test_the_key_changes_with_the_repeat_and_with_a_builders_option():
    config = Config.model_validate(PLAIN)
    other = Config.model_validate(PLAIN | {"model": {"kind": "gpt", "layers": 3, "width": 64}})
    assert len({config_key(config), config_key(config, 1), config_key(other)}) == 3
    assert len(config_key(config)) == 12


def test_the_key_does_not_depend_on_the_order_of_keys():
    model = {"layers": 2, "width": 64, "heads": 4, "dropout": 0.1}
    other = dict(reversed(model.items()))
    assert config_key(Config.model_validate({"model": other})) == config_key(
        Config.model_validate({"model": model})
    )


def test_a_config_survives_the_way_through_a_file():
    config = Config.model_validate(PLAIN | {"job": {"env": {"A": "b"}}, "optim": {"betas": [0.8, 0.9]}})
    again = Config.model_validate(json.loads(json.dumps(config.as_dict())))
    assert again == config
    assert config_key(again) == config_key(config)


def test_a_config_cannot_be_changed():
    with pytest.raises(ValidationError):
        Config().train.steps = 3


def test_world_size_is_nodes_times_ranks():
    assert Config.model_validate({"resources": {"nodes": 3, "gpus_per_node": 2}}).world_size == 6


@pytest.mark.parametrize(
    ("modules", "absent"),
    [
        (
            "config.config_tree config.run_key config.parsing records.metrics records.planned config.options",
            ["torch", "pandas", "submitit"],
        ),
        (
            "records.run_directory records.json_files errors config.batch_plan config.stop_time",
            ["torch", "pydantic", "yaml"],
        ),
    ],
)
def test_the_login_node_imports_nothing_heavy(modules, absent):
    imports = "; ".join(f"import disttrain.{module}" for module in modules.split())
    code = f"import sys; {imports}; print([name for name in {absent} if name in sys.modules])"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "[]"
