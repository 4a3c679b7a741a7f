"""What a script gives to its `Trainer` or `LoopTelemetry`: sections of the config, an optimizer, a run
directory."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from disttrain.config.batch_plan import BatchPlan
from disttrain.config.config_tree import Config
from disttrain.config.parsing import check_section
from disttrain.config.refusals import refused
from disttrain.config.run_key import hash_values
from disttrain.config.sections.optim import OptimConfig
from disttrain.config.sections.telemetry import TelemetryConfig
from disttrain.errors import ConfigError, nearest
from disttrain.records.run_json import asks_for_gpus
from disttrain.runtime.process import rank_info
from disttrain.runtime.process_group import World, open_world
from disttrain.runtime.run_output import RunOutput
from disttrain.telemetry.network import request_nccl_log

OptimizerFactory = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]
"""Makes an optimizer of the parameters of the parallel model."""

_OF_THE_OPTIMIZER = ("name", "lr", "weight_decay", "betas", "momentum", "fused")

ACCEPTED: dict[str, Collection[str] | None] = {
    "model": ("transforms",),
    "train": ("seed", "log_every"),
    "optim": [name for name in OptimConfig.model_fields if name not in _OF_THE_OPTIMIZER],
    "parallel": None,
    "memory": None,
    "precision": None,
    "compile": None,
    "resources": ("device", "threads_per_rank"),
    "checkpoint": ("dir", "keep"),
    "telemetry": [name for name in TelemetryConfig.model_fields if name != "layer_passes"],
    "profile": None,
}
"""Sections that a script may give, and their keys (None: all). The others are arguments of the `Trainer`, or
properties of the model, the optimizer and the data of the script."""


def config_of_script(
    model: Mapping[str, Any], plan: BatchPlan, sections: Mapping[str, Mapping[str, Any]], **train: int
) -> Config:
    """The full config of a script from its `sections`, and from what its arguments say of the sections
    `model` and `train`. Keys on which the script itself decides hold defaults that do not apply.

    Raises `ConfigError` for a section or key that is unknown or not accepted, and for an invalid value.
    """
    for section, values in sections.items():
        _refuse_other(f"section {section!r}", section, ACCEPTED)
        if not isinstance(values, Mapping):
            raise ConfigError(f"config: {section} must be a mapping of keys")
        check_section(section, dict(values))
        for key in values:
            _refuse_other(f"{section}.{key}", key, ACCEPTED[section] or values)
    rank, resources = rank_info(), sections.get("resources", {})
    gpus, needs_gpus = rank.local_size, asks_for_gpus(str(resources.get("device", "auto")))
    if rank.size == 1 and sections.get("parallel", {}).get("strategy") == "dp" and needs_gpus:
        gpus = max(1, torch.cuda.device_count())  # one process, all GPUs that it sees
    sizes = {"local_batch_size": plan.local, "global_batch_size": plan.global_}
    threads = {"threads_per_rank": torch.get_num_threads()}
    config = Config.model_validate(
        {
            **sections,
            "model": {**model, **sections.get("model", {})},
            "train": {**sections.get("train", {}), **train, **sizes},
            "resources": {**threads, **resources, "nodes": rank.nodes, "gpus_per_node": gpus},
        }
    )
    if config.parallel.strategy == "pipeline":
        raise ConfigError(
            "parallel.strategy=pipeline splits the models of this project alone; use ddp or auto"
        )
    if train and (messages := refused(config)):  # on what else is in it, only a Trainer acts
        raise ConfigError.of_all([ConfigError(message, at="config") for message in messages])
    return config


def join_world(config: Config, job: RunOutput | None) -> AbstractContextManager[World]:
    """A context with the `World`; a process group of its own in a `job` has NCCL's log."""
    if job and config.telemetry.gpu_every_s and not dist.is_initialized():
        request_nccl_log(job.attempt, rank_info())
    return open_world(config)


def _refuse_other(key: str, name: str, accepted: Collection[str]) -> None:
    if name not in accepted:
        allowed = ", ".join(accepted)
        raise ConfigError(f"config: a script takes no {key}{nearest(name, accepted)}; allowed: {allowed}")


def whole_numbers(least: int, **values: object) -> None:
    """Raise `ConfigError` for a value that is not a whole number of at least `least`."""
    for name, value in values.items():
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise ConfigError(f"{name}={value!r}: must be a whole number of at least {least}")


def script_output(
    run_dir: str | Path | None, config: Config, optimizer: torch.optim.Optimizer, world: World
) -> RunOutput:
    """The run directory of the job, or a new attempt in `run_dir`. The config in its `run.json` is the part
    of `config` that applies to a script, and the options of its optimizer. All ranks together."""
    telemetry = config.telemetry.model_dump(mode="json", exclude={"layer_passes"})
    recorded = config.model_dump(mode="json", exclude_unset=True)
    recorded |= {"telemetry": telemetry, "optim": optimizer_options(optimizer)}
    folder = None if run_dir is None else Path(run_dir)
    script = Path(sys.argv[0]).resolve()
    return RunOutput.of_environment() or RunOutput.by_hand(
        folder, script, recorded, hash_values(recorded), world, script=True
    )


def choose_optimizer(
    given: torch.optim.Optimizer | OptimizerFactory, parameters: list[nn.Parameter]
) -> torch.optim.Optimizer:
    """The given optimizer, or the one that the given function makes of `parameters`.

    Raises `ConfigError` for an optimizer of other parameters.
    """
    made = given if isinstance(given, torch.optim.Optimizer) else given(parameters)
    if not isinstance(made, torch.optim.Optimizer):
        raise ConfigError(f"optimizer: the function returned {type(made).__name__}, not an optimizer")
    held = (parameter for group in made.param_groups for parameter in group["params"])
    if not {*map(id, held)} <= {*map(id, parameters)}:
        raise ConfigError(
            "optimizer: it holds parameters that are not those of the parallel model; give a function, such "
            "as lambda parameters: torch.optim.AdamW(parameters, lr=1e-3)"
        )
    return made


def optimizer_options(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Class of the optimizer, and the plain options on which all of its parameter groups agree."""
    groups = optimizer.param_groups
    return {"name": full_name(type(optimizer))} | {
        key: list(value) if isinstance(value, tuple) else value
        for key, value in groups[0].items()
        if _is_plain(value) and all(group.get(key) == value for group in groups)
    }


def _is_plain(value: object) -> bool:
    parts = value if isinstance(value, list | tuple) else [value]
    return all(isinstance(part, int | float | str | None) for part in parts)


def full_name(cls: type) -> str:
    return f"{cls.__module__}:{cls.__qualname__}"
