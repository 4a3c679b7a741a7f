"""The config of a `Trainer`: the sections that a script gives, checked as those of a file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from disttrain.config.batch_plan import BatchPlan
from disttrain.config.config_tree import Config
from disttrain.config.parsing import check_section
from disttrain.config.refusals import refuse
from disttrain.config.sections.optim import OptimConfig
from disttrain.config.sections.telemetry import TelemetryConfig
from disttrain.errors import ConfigError, nearest
from disttrain.records.ranks import asks_for_gpus
from disttrain.runtime.rank_info import RankInfo

_OF_THE_OPTIMIZER = ("name", "lr", "weight_decay", "betas", "momentum", "fused")

ACCEPTED: dict[str, tuple[str, ...] | None] = {
    "model": ("transforms",),
    "train": ("seed", "log_every"),
    "optim": tuple(name for name in OptimConfig.model_fields if name not in _OF_THE_OPTIMIZER),
    "parallel": None,
    "memory": None,
    "precision": None,
    "compile": None,
    "resources": ("device", "threads_per_rank"),
    "checkpoint": ("dir", "keep"),
    "telemetry": tuple(name for name in TelemetryConfig.model_fields if name != "layer_passes"),
    "profile": None,
}
"""Sections that a script may give, and their keys (None: all). The others are arguments of the `Trainer`, or
properties of the model, the optimizer and the data of the script."""


def trainer_config(
    model: type[nn.Module],
    plan: BatchPlan,
    steps: int,
    given: Mapping[str, Mapping[str, Any]],
    rank: RankInfo,
) -> Config:
    """The full config of a `Trainer` for a model of this class.

    Raises `ConfigError` for a section or key that is unknown or not accepted, and for an invalid value.
    """
    for name, values in given.items():
        _refuse_unaccepted(name, values)
        check_section(name, dict(values))
    sections: dict[str, dict[str, Any]] = {name: dict(values) for name, values in given.items()}
    sections["model"] = {"kind": f"{model.__module__}:{model.__qualname__}", **sections.get("model", {})}
    sizes = {"local_batch_size": plan.local, "global_batch_size": plan.global_}
    sections["train"] = {**sections.get("train", {}), "steps": steps, **sizes}
    gpus = rank.local_size
    device = str(sections.get("resources", {}).get("device", "auto"))
    if rank.size == 1 and sections.get("parallel", {}).get("strategy") == "dp" and asks_for_gpus(device):
        gpus = max(1, torch.cuda.device_count())  # one process, all GPUs that it sees
    shape = {"nodes": rank.nodes, "gpus_per_node": gpus}
    threads = {"threads_per_rank": torch.get_num_threads()}
    sections["resources"] = {**threads, **sections.get("resources", {}), **shape}
    config = Config.model_validate(sections)
    if config.parallel.strategy == "pipeline":
        raise ConfigError(
            "parallel.strategy=pipeline splits the models of this project alone; use ddp or auto"
        )
    refuse(config, lambda key: "config")
    return config


def _refuse_unaccepted(name: str, values: Mapping[str, Any]) -> None:
    if name not in ACCEPTED:
        allowed = ", ".join(ACCEPTED)
        raise ConfigError(
            f"config: a Trainer takes no section {name!r}{nearest(name, list(ACCEPTED))}; allowed: {allowed}"
        )
    if not isinstance(values, Mapping):
        raise ConfigError(f"config: {name} must be a mapping of keys")
    keys = ACCEPTED[name]
    for key in values:
        if keys is not None and key not in keys:
            raise ConfigError(
                f"config: a Trainer takes no {name}.{key}{nearest(key, keys)}; allowed: {', '.join(keys)}"
            )
