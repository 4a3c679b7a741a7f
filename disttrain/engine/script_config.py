"""What a script brings to its `Trainer`: sections of the config, a process group, an optimizer."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from disttrain.config.batch_plan import BatchPlan
from disttrain.config.config_tree import Config
from disttrain.config.parsing import check_section
from disttrain.config.refusals import refused
from disttrain.config.sections.optim import OptimConfig
from disttrain.config.sections.telemetry import TelemetryConfig
from disttrain.engine.objective import OwnObjective
from disttrain.engine.spec import spec_of_script
from disttrain.engine.step import Stepper, build_stepper
from disttrain.errors import ConfigError, nearest
from disttrain.parallel.base import build_strategy
from disttrain.records.dataset import DatasetRecord
from disttrain.records.run_json import asks_for_gpus
from disttrain.runtime.device_agreement import DeviceNeeds, choose
from disttrain.runtime.process import RankInfo, rank_info
from disttrain.runtime.process_group import World, check_group_size, open_world
from disttrain.runtime.rank_failure import record_failure
from disttrain.runtime.run_output import RunOutput
from disttrain.telemetry.network import request_nccl_log

OptimizerFactory = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]
"""Makes an optimizer of the parameters of the parallel model."""
UNKNOWN_DATA = DatasetRecord(name="own", version=None, sha256=None, train_samples=0, valid_samples=0)

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
    sections["model"] = {"kind": full_name(model), **sections.get("model", {})}
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
    if messages := refused(config):
        raise ConfigError.of_all([ConfigError(message, at="config") for message in messages])
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


def whole_numbers(least: int, **values: object) -> None:
    """Raise `ConfigError` for a value that is not a whole number of at least `least`."""
    for name, value in values.items():
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise ConfigError(f"{name}={value!r}: must be a whole number of at least {least}")


def build_of_script(
    exit_: ExitStack,
    model: nn.Module,
    optimizer: torch.optim.Optimizer | OptimizerFactory,
    loss: Callable[[nn.Module, Any], Tensor],
    steps: int,
    batch_size: int,
    accumulation: int,
    run_dir: str | Path | None,
    sections: Mapping[str, Mapping[str, Any]],
) -> tuple[Config, Stepper, RunOutput]:
    """The config, the stepper and the run directory of a script; a process group is left at the exit. All
    ranks together. Raises `ConfigError`."""
    whole_numbers(1, steps=steps, batch_size=batch_size, accumulation=accumulation)
    plan = BatchPlan(batch_size, accumulation, rank_info().size)
    config = trainer_config(type(model), plan, steps, sections, rank_info())
    world = exit_.enter_context(join_world(config))

    def own_optimizer(parameters: Iterable[nn.Parameter], _: nn.Module) -> torch.optim.Optimizer:
        return choose_optimizer(optimizer, list(parameters))

    spec = spec_of_script(model, own_optimizer, OwnObjective(loss), config, plan, steps, world)
    strategy = build_strategy(spec.config.parallel.strategy, spec.config.parallel)
    stepper = build_stepper(spec, strategy, world)
    return config, stepper, script_output(run_dir, known_values(config, stepper.optimizer), world)


def script_output(run_dir: str | Path | None, values: dict[str, Any], world: World) -> RunOutput:
    """The run directory of the job, or a new attempt in `run_dir`, whose known config is `values`. All ranks
    together."""
    folder = None if run_dir is None else Path(run_dir)
    script = Path(sys.argv[0]).resolve()
    return RunOutput.of_environment() or RunOutput.of_loop(folder, script, values, world)


def join_world(config: Config) -> AbstractContextManager[World]:
    """A context with the `World`: of the process group that the script has joined, or of a new one."""
    needs = DeviceNeeds.of(config)
    if not dist.is_initialized():
        if (output := RunOutput.of_environment()) and config.telemetry.gpu_every_s:
            request_nccl_log(output.attempt, rank_info())
        return open_world(config.resources, config.job.collective_timeout_s, needs)
    info = rank_info()
    check_group_size(info)
    chosen = choose(config.resources.device, info, needs)
    if chosen.problem:
        raise ConfigError(chosen.message)
    device = torch.device(chosen.device)
    gpus = config.gpus_per_rank if device.type == "cuda" else 1
    return nullcontext(World(**vars(info), device=device, backend=dist.get_backend(), gpus_per_rank=gpus))


@contextmanager
def recorded_if_it_fails(world: ExitStack) -> Iterator[None]:
    """Record an error of this block in the run directory of the job, if there is one.

    After a `ConfigError`, which all ranks raise, they leave the process group of `world`.
    """
    try:
        yield
    except BaseException as error:
        if output := RunOutput.of_environment():
            record_failure(error, rank_info().rank, output.attempt)
        if isinstance(error, ConfigError):
            world.close()
        raise


def choose_optimizer(
    given: torch.optim.Optimizer | OptimizerFactory, parameters: list[nn.Parameter]
) -> torch.optim.Optimizer:
    """The given optimizer, or the one that the given function makes of `parameters`.

    Raises `ConfigError` for an optimizer of other parameters.
    """
    made = given if isinstance(given, torch.optim.Optimizer) else given(parameters)
    if not isinstance(made, torch.optim.Optimizer):
        raise ConfigError(f"optimizer: the function returned {type(made).__name__}, not an optimizer")
    known = set(map(id, parameters))
    if any(id(parameter) not in known for group in made.param_groups for parameter in group["params"]):
        raise ConfigError(
            "optimizer: it holds parameters that are not those of the parallel model; give a function, such "
            "as lambda parameters: torch.optim.AdamW(parameters, lr=1e-3)"
        )
    return made


def known_values(config: Config, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """The part of the config that applies to a script, and the options of its optimizer: the config in
    `run.json`."""
    known = config.model_dump(mode="json", exclude_unset=True)
    telemetry = config.as_dict()["telemetry"]
    del telemetry["layer_passes"]
    return known | {"telemetry": telemetry, "optim": optimizer_options(optimizer)}


def optimizer_options(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Class of the optimizer, and the options on which all of its parameter groups agree."""
    first, *others = optimizer.param_groups
    return {"name": full_name(type(optimizer))} | {
        key: list(value) if isinstance(value, tuple) else value
        for key, value in first.items()
        if _is_plain(value) and all(key in group and group[key] == value for group in others)
    }


def _is_plain(value: object) -> bool:
    if isinstance(value, tuple):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, bool | int | float | str)


def full_name(cls: type) -> str:
    return f"{cls.__module__}:{cls.__qualname__}"
