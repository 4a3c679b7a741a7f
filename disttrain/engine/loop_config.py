"""The config of a user's own loop: values that the loop gave, and those that its optimizer holds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from disttrain.config.config_tree import Config
from disttrain.config.parsing import check_section
from disttrain.engine.fsdp_exposed import original_class
from disttrain.errors import ConfigError
from disttrain.models.hooks import hooks_of
from disttrain.runtime.process_group import World


@dataclass(frozen=True)
class StepPlan:
    """Steps and batch sizes that the loop announces.

    Raises `ConfigError` for a value below its minimum, and for samples that do not divide into batches.
    """

    steps: int
    samples_per_step: int
    accumulation: int
    resumed_step: int

    def __post_init__(self) -> None:
        for name, least in (("steps", 1), ("samples_per_step", 1), ("accumulation", 1), ("resumed_step", 0)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise ConfigError(f"{name}={value!r}: must be a whole number of at least {least}")
        if self.samples_per_step % self.accumulation:
            raise ConfigError(
                f"samples_per_step={self.samples_per_step} is not a multiple of "
                f"accumulation={self.accumulation}"
            )

    @property
    def local_batch_size(self) -> int:
        return self.samples_per_step // self.accumulation

    def metrics_fields(self, ranks: int) -> dict[str, Any]:
        """The fields of `Metrics` for this plan."""
        return {
            "steps_total": self.steps,
            "resumed_step": self.resumed_step or None,
            "local_batch_size": self.local_batch_size,
            "accumulation": self.accumulation,
            "global_batch_size": self.samples_per_step * ranks,
        }


def same_on_all_ranks(plan: StepPlan, world: World) -> None:
    """Raise `ConfigError` unless all ranks announce the same. All ranks together."""
    plans = world.all_gather_object(plan)
    for rank, other in enumerate(plans):
        for name, value in vars(other).items():
            if value != (expected := getattr(plans[0], name)):
                raise ConfigError(f"{name} differs: {expected} on rank 0, {value} on rank {rank}")


def loop_config(model: nn.Module, world: World, plan: StepPlan, telemetry: dict[str, Any]) -> Config:
    """The config that the telemetry needs. Keys on which the loop decides, such as those of `optim`, hold
    defaults that do not apply.

    Raises `ConfigError` for an invalid key of `telemetry`.
    """
    check_section("telemetry", telemetry)
    if "layer_passes" in telemetry:
        raise ConfigError("telemetry.layer_passes has no effect on a loop of your own")
    return Config.model_validate(
        {
            "model": hooks_of(model).model_section() or {"kind": _full_name(original_class(model))},
            "train": {
                "local_batch_size": plan.local_batch_size,
                "global_batch_size": plan.samples_per_step * world.size,
            },
            "resources": {
                "nodes": world.nodes,
                "gpus_per_node": world.local_size,
                "device": world.device.type,
                "threads_per_rank": torch.get_num_threads(),
            },
            "telemetry": telemetry,
        }
    )


def known_values(config: Config, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """The part of `loop_config` that applies to the loop, and the options of its optimizer: the config in
    `run.json`."""
    known = config.model_dump(mode="json", exclude_unset=True)
    telemetry = config.as_dict()["telemetry"]
    del telemetry["layer_passes"]
    return known | {"telemetry": telemetry, "optim": optimizer_options(optimizer)}


def optimizer_options(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Class of the optimizer, and the options on which all of its parameter groups agree."""
    first, *others = optimizer.param_groups
    return {"name": _full_name(type(optimizer))} | {
        key: list(value) if isinstance(value, tuple) else value
        for key, value in first.items()
        if _is_plain(value) and all(key in group and group[key] == value for group in others)
    }


def _is_plain(value: object) -> bool:
    if isinstance(value, tuple):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, bool | int | float | str)


def _full_name(cls: type) -> str:
    return f"{cls.__module__}:{cls.__qualname__}"
