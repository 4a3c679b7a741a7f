"""Options that no run of a sweep reads: given for another strategy, optimizer, schedule or device.

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


READERS = (
    _strategy("ddp", "ddp", "auto"),
    _strategy("fsdp", "fsdp", "hsdp", "auto"),
    _strategy("hsdp", "hsdp", "auto"),
    _strategy("pipeline", "pipeline"),
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
        lambda config: config.checkpoint.regular,
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
    plain = [(config, config.as_dict()) for config in configs if not config.command]
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
