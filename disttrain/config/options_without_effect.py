"""Options that no run of a sweep reads: given for another strategy, optimizer, schedule, model or device.

They are warnings, not refusals: the runs of a sweep over strategies share one section of options for each
strategy. Without torch: the login node prints them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from disttrain.config.config_tree import Config, config_fields
from disttrain.config.dotted_keys import get_key
from disttrain.errors import as_text, either


@dataclass(frozen=True)
class Reader:
    """Condition under which a run reads some options."""

    options: tuple[str, ...]
    """Dotted keys of options, or of sections."""
    reads: Callable[[Config], bool]
    depends_on: tuple[str, ...]
    """Dotted keys that decide it."""
    needs: str
    """Values of these keys with which the options have an effect."""


def _strategy(section: str, *names: str) -> Reader:
    return Reader(
        (f"parallel.{section}",),
        lambda config: config.parallel.strategy in names,
        ("parallel.strategy",),
        f"parallel.strategy={either(names)}",
    )


def _schedule(option: str, *names: str) -> Reader:
    return Reader(
        (f"optim.{option}",),
        lambda config: config.optim.schedule in names,
        ("optim.schedule",),
        f"optim.schedule={either(names)}",
    )


def _optimizer(option: str, name: str) -> Reader:
    return Reader(
        (f"optim.{option}",), lambda config: config.optim.name == name, ("optim.name",), f"optim.name={name}"
    )


_NO_BATCH_NORMS = ("gpt", "mlp", "emulated")
"""Built-in models without batch norms, and without kernels of convolutions."""
_OF_CONVOLUTIONS = {
    "channels_last",
    "group_norm",
}
"""Transforms that leave a model without batch norms and convolutions as it is."""


def _accumulates(config: Config) -> bool:
    """Whether a step has several micro-steps, or may have with an automatic batch size."""
    local, whole = config.train.local_batch_size, config.train.global_batch_size
    if local is None or whole is None:
        return False
    return local == "auto" or whole > local * config.world_size


def _validates(config: Config) -> bool:
    """Whether a built-in data source has validation samples; true for a plug-in."""
    options = config.data.model_extra or {}
    return bool(options.get("valid_path") or options.get("valid_share", 1))


READERS = (
    _strategy("ddp", "ddp", "auto"),
    _strategy("fsdp", "fsdp", "hsdp", "auto"),
    _strategy("hsdp", "hsdp", "auto"),
    _strategy("pipeline", "pipeline"),
    Reader(  # ddp on one rank compresses, too
        ("parallel.gradient_communication.scheme",),
        lambda config: (
            config.parallel.strategy == "ddp"
            or (config.parallel.strategy == "auto" and config.world_size > 1)
        ),
        ("resources.nodes", "resources.gpus_per_node"),
        "several ranks, or parallel.strategy=ddp",
    ),
    Reader(
        ("parallel.gradient_communication.scheme",),
        lambda config: (
            config.parallel.gradient_communication.scheme != "hierarchical"
            or config.resources.gpus_per_node > 1
            or config.world_size == 1
        ),
        ("resources.gpus_per_node",),
        "several ranks on a node",
    ),
    Reader(
        ("parallel.fsdp.accumulation",),
        lambda config: config.parallel.strategy not in ("fsdp", "hsdp") or _accumulates(config),
        ("train.local_batch_size", "train.global_batch_size"),
        "a train.global_batch_size of several micro-steps",
    ),
    Reader(
        ("parallel.ddp.sync_batch_norm",),
        lambda config: (
            config.parallel.strategy not in ("ddp", "auto") or config.model.kind not in _NO_BATCH_NORMS
        ),
        ("model.kind",),
        "a model with batch norms, such as model.kind=resnet",
    ),
    Reader(
        ("model.transforms",),
        lambda config: (
            config.model.kind not in _NO_BATCH_NORMS
            or not _OF_CONVOLUTIONS.issuperset(config.model.transforms)
        ),
        ("model.kind",),
        "a model with convolutions, such as model.kind=resnet",
    ),
    Reader(
        ("train.eval_every", "train.eval_samples"),
        _validates,
        ("data.valid_share",),
        "a data.valid_share above 0",
    ),
    Reader(
        ("train.eval_every", "train.eval_samples"),
        lambda config: (config.data.model_extra or {}).get("valid_samples") != 0,
        ("data.valid_samples",),
        "a data.valid_samples above 0",
    ),
    _optimizer("betas", "adamw"),
    _optimizer("momentum", "sgd"),
    _schedule("final_lr_ratio", "cosine", "cosine_restarts", "linear"),
    _schedule("step_factor", "step"),
    Reader(
        ("checkpoint.start_with",),
        lambda config: config.checkpoint.start_from is not None,
        ("checkpoint.start_from",),
        "a checkpoint.start_from",
    ),
    Reader(
        ("checkpoint.best",),
        lambda config: config.checkpoint.requested,
        ("checkpoint.every_steps", "checkpoint.every_s"),
        "checkpoint.every_steps or checkpoint.every_s",
    ),
    Reader(
        ("data.prefetch",),
        lambda config: config.data.workers > 0,
        ("data.workers",),
        "data.workers of at least 1",
    ),
    Reader(
        ("profile.ranks",),
        lambda config: config.profile.steps is not None,
        ("profile.steps",),
        "profile.steps",
    ),
    Reader(  # the mode turns CUDA graphs on, and nothing else
        ("compile.mode",),
        lambda config: config.compile.mode != "reduce-overhead" or config.resources.device != "cpu",
        ("resources.device",),
        "resources.device=cuda, auto or shared",
    ),
)


def options_without_effect(configs: Iterable[Config]) -> list[str]:
    """One line for each option that differs from its default, and that no run which has it reads."""
    distinct = {id(config): config for config in configs if not config.command}  # repeats share theirs
    plain = [(config, config.as_dict()) for config in distinct.values()]
    return [
        line
        for reader in READERS
        for key, default in _options(reader)
        if (line := _line(reader, key, default, plain))
    ]


def unread(config: Config) -> list[str]:
    """Dotted keys of the options that a run of this config does not read."""
    return [key for reader in READERS if not reader.reads(config) for key, _ in _options(reader)]


def _line(
    reader: Reader, key: str, default: Any, runs: Sequence[tuple[Config, dict[str, Any]]]
) -> str | None:
    given = [(config, plain) for config, plain in runs if get_key(plain, key) != default]
    if not given or any(reader.reads(config) for config, _ in given):
        return None
    values = _distinct(get_key(plain, key) for _, plain in given)
    causes = " and ".join(
        f"{name}={either(_distinct(get_key(plain, name) for _, plain in given))}"
        for name in reader.depends_on
    )
    return f"{key}={either(values)} has no effect with {causes}; it needs {reader.needs}"


def _options(reader: Reader) -> Iterator[tuple[str, Any]]:
    """Dotted key and default, as plain JSON types, of each option."""
    for key, field in config_fields():
        if any(key == each or key.startswith(f"{each}.") for each in reader.options):
            yield key, json.loads(json.dumps(field.default))


def _distinct(values: Iterable[Any]) -> list[str]:
    """The different values as text, as in YAML, in order of appearance."""
    return list(dict.fromkeys(as_text(value) for value in values))
