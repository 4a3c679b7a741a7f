"""The run key: a hash of the config values on which the results and the speed of a run depend.

A field at its default enters the key only if it is one of `_ALWAYS`, so that a new version with more fields
changes no key of a config without them.
"""

from __future__ import annotations

import functools
import hashlib
import json
from typing import Any

from disttrain.config.config_tree import Config, config_fields
from disttrain.config.dotted_keys import ABSENT, get_key, pop_key
from disttrain.config.sections.base import is_excluded_from_key

_ALWAYS = {
    f"{section}.{name}"
    for section, names in {
        "model": "kind",
        "data": "kind workers prefetch",
        "train": "steps epochs local_batch_size global_batch_size seed eval_every eval_samples",
        "optim": "name lr weight_decay betas momentum fused grad_clip schedule warmup_steps final_lr_ratio "
        "step_every step_factor lr_scaling lr_base_batch",
        "parallel": "strategy",
        "parallel.ddp": "bucket_mb gradient_as_bucket_view static_graph find_unused_parameters",
        "resources": "nodes gpus_per_node device threads_per_rank",
        "job": "env",
        "checkpoint": "every_steps best asynchronous start_from start_with",
        "telemetry": "warmup_steps layer_passes",
    }.items()
    for name in names.split()
}
"""The fields that there were when runs had their first keys: no field is added here."""


def keyed_values(config: Config) -> dict[str, Any]:
    """The config as plain data without the fields that are excluded from the run key."""
    plain = config.as_dict()
    for key, (is_excluded, default) in _fields(type(config)).items():
        if get_key(plain, key, ABSENT) is ABSENT:
            continue
        if is_excluded:
            pop_key(plain, key)
        elif key not in _ALWAYS and get_key(plain, key) == default:
            pop_key(plain, key)
            while (key := key.rpartition(".")[0]) and not get_key(plain, key):  # no section of such fields
                pop_key(plain, key)
    return plain


@functools.cache
def _fields(tree: type[Config]) -> dict[str, tuple[bool, Any]]:
    """By dotted key: whether a field is excluded from the key, and its default as plain data."""
    plain = tree().as_dict()
    return {key: (is_excluded_from_key(field), get_key(plain, key)) for key, field in config_fields(tree)}


def config_key(config: Config, repeat: int = 0) -> str:
    """`hash_values` of the keyed values: equal for runs that compute the same."""
    return hash_values(keyed_values(config), repeat)


def hash_values(values: dict[str, Any], repeat: int = 0) -> str:
    """SHA-256 over plain data and the repeat: 12 hex digits."""
    text = json.dumps([values, repeat], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:12]
