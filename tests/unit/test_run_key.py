"""The run key: equal for configs that compute the same, also in a later version."""

from pathlib import Path
from typing import Literal, get_args, get_origin

import pytest

from disttrain.config.config_tree import Config, config_fields
from disttrain.config.dotted_keys import flat_values
from disttrain.config.parsing import Draft, check, load, with_batch
from disttrain.config.run_key import config_key, keyed_values
from disttrain.config.sections.base import is_excluded_from_key
from disttrain.config.sections.job import JobConfig

SWEEPS = Path(__file__).parents[2] / "sweeps"
FIELDS = dict(config_fields())


def config_of(**sections):
    return Config.model_validate(sections)


def another_value(field):
    """A valid value of a field that is not its default."""
    default, annotation = field.default, field.annotation
    if get_origin(annotation) is Literal:
        return next(value for value in get_args(annotation) if value != default)
    if default is None:
        kind = next(item for item in get_args(annotation) if item is not type(None))
        kind = getattr(kind, "__origin__", kind)
        return {bool: True, int: 7, float: 0.5, str: "x", tuple: (7, 8)}.get(kind, 7)
    if isinstance(default, bool):
        return not default
    if isinstance(default, float) and 0 < default < 1:
        return default / 2  # 1 may be the largest value
    if isinstance(default, int | float):
        return default * 2 + 1
    if isinstance(default, dict):
        return {"NCCL_DEBUG": "INFO"}
    if isinstance(default, str):
        return default + "x"
    if not default:
        return ("package.module:function",)
    return default[::-1] if default[::-1] != default else (*default, *default)


@pytest.mark.parametrize("key", FIELDS)
def test_the_key_changes_with_every_field_that_is_not_excluded(key):
    draft = Draft()
    draft.set(key, another_value(FIELDS[key]), "")
    changed = Config.model_validate(draft.data)
    assert flat_values(changed.as_dict()) != flat_values(Config().as_dict())
    assert (config_key(changed) == config_key(Config())) == is_excluded_from_key(FIELDS[key])


def test_excluded_from_the_key_are_fields_that_cannot_change_the_numbers():
    excluded = """
        train.log_every job.time_limit_min job.max_attempts job.max_requeues job.rendezvous_timeout_s
        job.stop_lead_s job.stop_check_s job.preflight job.setup_timeout_s job.step_timeout_s
        job.checkpoint_timeout_s job.evaluation_timeout_s job.collective_timeout_s job.script_step_timeout_s
        job.idle_timeout_min job.stop_signal job.resume_args job.secrets job.on_end job.on_checkpoint
        job.on_done job.follow_up_gpus job.follow_up_limit_min checkpoint.every_s checkpoint.keep
        checkpoint.dir telemetry.profiled_steps telemetry.full_records telemetry.flush_every_s
        telemetry.gpu_every_s telemetry.fields telemetry.sinks profile.steps profile.ranks
    """
    assert [key for key, field in FIELDS.items() if is_excluded_from_key(field)] == excluded.split()
    assert keyed_values(Config()).keys().isdisjoint({"compile", "memory"})


def test_the_key_changes_with_the_repeat_and_with_an_option_but_not_with_the_order_of_keys():
    model = {"layers": 2, "width": 64}
    same = config_of(model=dict(reversed(model.items())))
    keys = [config_key(config_of(model=model)), config_key(same), config_key(same, 1)]
    keys.append(config_key(config_of(model=model | {"layers": 3})))
    assert keys[0] == keys[1]
    assert (len({*keys}), len(keys[0])) == (3, 12)


def test_a_later_field_enters_the_key_only_where_it_is_set():
    class Job(JobConfig):
        launcher: str = "torchrun"

    class Later(Config):
        job: Job = Job()

    assert config_key(Later()) == config_key(Config())
    assert config_key(Later(job=Job(launcher="mpirun"))) != config_key(Config())


# A change of one of these is a break for users: a repeated sweep would not find its runs, and compute them
# again. Only a changed value in the file itself is a reason for another key.
@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("default.yaml", "6600d1d871c1"),
        ("gpt-1.3b-fsdp.yaml", "f64f6ac536d2"),
        ("resnet50-ddp.yaml", "99913f8421f9"),
    ],
)
def test_the_keys_of_these_configs_stay(name, key):
    draft = load(SWEEPS / name)
    assert config_key(with_batch(check(draft), draft)[0]) == key
