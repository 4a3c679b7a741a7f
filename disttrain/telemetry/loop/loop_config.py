"""The config of a user's own loop: values that the loop gave, and those that its optimizer holds."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from disttrain.config.keys_and_defaults import Config
from disttrain.config.renamed_keys import refusal
from disttrain.errors import ConfigError
from disttrain.model_hooks import hooks_of
from disttrain.runtime.process_group import World
from disttrain.telemetry.loop.fsdp_exposed import original_class


def loop_config(
    model: nn.Module, world: World, steps: int, local_batch_size: int, telemetry: dict[str, Any]
) -> Config:
    """The config that the telemetry needs. Sections on which the loop decides, such as `optim`, hold defaults
    that do not apply.

    Raises `ConfigError` for a renamed or removed key of `telemetry`.
    """
    for key in telemetry:
        if message := refusal(f"telemetry.{key}"):
            raise ConfigError(message)
    return Config.model_validate(
        {
            "model": hooks_of(model).model_section() or {"kind": _full_name(original_class(model))},
            "train": {"steps": steps, "local_batch_size": local_batch_size},
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
    given = config.model_dump(mode="json", exclude_unset=True)
    return given | {"telemetry": config.as_dict()["telemetry"], "optim": optimizer_options(optimizer)}


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
